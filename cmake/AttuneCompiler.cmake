# The language level, warnings, sanitizers and link options of everything that we compile.

set(CMAKE_CXX_STANDARD 20)
set(CMAKE_CXX_STANDARD_REQUIRED ON)
set(CMAKE_CXX_EXTENSIONS OFF)
set(CMAKE_C_STANDARD 11)
set(CMAKE_C_STANDARD_REQUIRED ON)
set(CMAKE_C_EXTENSIONS OFF)
set(CMAKE_POSITION_INDEPENDENT_CODE ON)
set(CMAKE_CXX_VISIBILITY_PRESET hidden)
set(CMAKE_VISIBILITY_INLINES_HIDDEN ON)

if(NOT CMAKE_BUILD_TYPE)
  set(CMAKE_BUILD_TYPE RelWithDebInfo CACHE STRING "Build type" FORCE)
endif()

find_program(ATTUNE_CCACHE ccache)
if(ATTUNE_CCACHE AND NOT CMAKE_CXX_COMPILER_LAUNCHER)
  set(CMAKE_CXX_COMPILER_LAUNCHER ${ATTUNE_CCACHE})
endif()

add_library(attune_options INTERFACE)
target_compile_options(attune_options INTERFACE -Wall -Wextra -Wpedantic -Wshadow)
target_compile_options(attune_options INTERFACE -ffunction-sections -fdata-sections)
# Messages name files relative to the repository, so the building machine's paths are not in the binaries.
target_compile_options(attune_options INTERFACE -fmacro-prefix-map=${PROJECT_SOURCE_DIR}/=)
target_link_options(attune_options INTERFACE -Wl,--gc-sections)
if(ATTUNE_WERROR)
  target_compile_options(attune_options INTERFACE -Werror)
endif()
if(ATTUNE_SANITIZE)
  target_compile_options(attune_options INTERFACE -fsanitize=${ATTUNE_SANITIZE} -fno-sanitize-recover=all
                                                  -fno-omit-frame-pointer)
  target_link_options(attune_options INTERFACE -fsanitize=${ATTUNE_SANITIZE})
endif()
if(ATTUNE_STATIC_RUNTIME)
  target_link_options(attune_options INTERFACE -static-libstdc++ -static-libgcc)
endif()
