# fmt as attune_fmt. Debian 12 and Ubuntu 24.04 install fmt 9 without an archive; compiling its functions once from the
# installed headers links them statically and costs far less than the header-only mode in every source file.

find_package(fmt 9.1 REQUIRED)
find_library(ATTUNE_FMT_ARCHIVE NAMES libfmt.a)
mark_as_advanced(ATTUNE_FMT_ARCHIVE)

if(ATTUNE_FMT_ARCHIVE)
  add_library(attune_fmt INTERFACE)
  get_target_property(fmt_includes fmt::fmt INTERFACE_INCLUDE_DIRECTORIES)
  target_include_directories(attune_fmt SYSTEM INTERFACE ${fmt_includes})
  target_link_libraries(attune_fmt INTERFACE ${ATTUNE_FMT_ARCHIVE})
elseif(fmt_VERSION VERSION_LESS 10)
  add_library(attune_fmt STATIC ${PROJECT_SOURCE_DIR}/cmake/fmt.cpp)
  get_target_property(fmt_includes fmt::fmt INTERFACE_INCLUDE_DIRECTORIES)
  target_include_directories(attune_fmt SYSTEM PUBLIC ${fmt_includes})
else()
  add_library(attune_fmt INTERFACE)
  target_link_libraries(attune_fmt INTERFACE fmt::fmt-header-only)
endif()
