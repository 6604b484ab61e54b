// SHA-256 as lower-case hexadecimal text (64 characters).
#pragma once

#include <cstddef>
#include <span>
#include <string>
#include <string_view>

namespace attune {

std::string sha256_hex(std::string_view bytes);
std::string sha256_hex(std::span<const std::byte> bytes);

}  // namespace attune
