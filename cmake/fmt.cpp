// fmt 9's functions, compiled from its installed headers (see AttuneFmt.cmake).

#include <fmt/format-inl.h>

FMT_BEGIN_NAMESPACE
namespace detail {

template locale_ref::locale_ref(const std::locale&);
template std::locale locale_ref::get<std::locale>() const;

template dragonbox::decimal_fp<float> dragonbox::to_decimal(float) noexcept;
template dragonbox::decimal_fp<double> dragonbox::to_decimal(double) noexcept;

template thousands_sep_result<char> thousands_sep_impl(locale_ref);
template char decimal_point_impl(locale_ref);
template void buffer<char>::append(const char*, const char*);
template void vformat_to(buffer<char>&, string_view, basic_format_args<FMT_BUFFER_CONTEXT(char)>, locale_ref);

}  // namespace detail
FMT_END_NAMESPACE
