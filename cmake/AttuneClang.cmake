# Before project(): the C++ compiler of a build that needs clang.

if(NOT CMAKE_CXX_COMPILER)
  set(names clang++)
  foreach(version RANGE 22 14 -1)
    list(APPEND names clang++-${version})
  endforeach()
  find_program(ATTUNE_CLANG NAMES ${names})
  if(NOT ATTUNE_CLANG)
    message(FATAL_ERROR "ATTUNE_FUZZ needs clang with libFuzzer, and found neither clang++ nor clang++-14 to clang++-22 "
                        "(Debian, Ubuntu: apt-get install clang libclang-rt-dev)")
  endif()
  set(CMAKE_CXX_COMPILER ${ATTUNE_CLANG})
endif()
