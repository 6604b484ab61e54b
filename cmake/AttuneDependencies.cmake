# The libraries that attune builds on. Static archives are preferred, so that what is built here runs on machines
# that have none of these libraries.

find_package(Threads REQUIRED)
find_package(nlohmann_json 3.11 REQUIRED)
find_package(CLI11 2.1 REQUIRED)

# attune_archive(<target> <library> <header>): an imported library, static where an archive is installed.
function(attune_archive target library header)
  find_library(ATTUNE_${library}_LIBRARY NAMES lib${library}.a ${library} REQUIRED)
  find_path(ATTUNE_${library}_INCLUDE_DIR ${header} REQUIRED)
  mark_as_advanced(ATTUNE_${library}_LIBRARY ATTUNE_${library}_INCLUDE_DIR)
  add_library(${target} INTERFACE IMPORTED GLOBAL)
  target_link_libraries(${target} INTERFACE ${ATTUNE_${library}_LIBRARY})
  target_include_directories(${target} SYSTEM INTERFACE ${ATTUNE_${library}_INCLUDE_DIR})
endfunction()

attune_archive(attune_sqlite sqlite3 sqlite3.h)
target_link_libraries(attune_sqlite INTERFACE Threads::Threads m ${CMAKE_DL_LIBS})
attune_archive(attune_sodium sodium sodium.h)
target_link_libraries(attune_sodium INTERFACE Threads::Threads)
attune_archive(attune_zlib z zlib.h)
attune_archive(attune_zstd zstd zstd.h)

include(AttuneFmt)
include(AttuneLlvm)
include(AttuneCuda)

if(ATTUNE_TESTS)
  find_package(doctest 2.4 REQUIRED)
  find_package(Python3 REQUIRED COMPONENTS Interpreter)
endif()
