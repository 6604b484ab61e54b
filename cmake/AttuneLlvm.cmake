# The parts of LLVM 19 that read object files, as attune_llvm. llvm-config is asked rather than LLVM's CMake package,
# which demands the development files of every library that any part of LLVM uses.

find_program(ATTUNE_LLVM_CONFIG NAMES llvm-config-19 llvm-config)
if(NOT ATTUNE_LLVM_CONFIG)
  message(FATAL_ERROR "llvm-config-19 was not found: install llvm-19-dev, or set ATTUNE_LLVM_CONFIG")
endif()

function(attune_llvm_config variable)
  execute_process(COMMAND ${ATTUNE_LLVM_CONFIG} ${ARGN} OUTPUT_VARIABLE output OUTPUT_STRIP_TRAILING_WHITESPACE
                          COMMAND_ERROR_IS_FATAL ANY)
  set(${variable} "${output}" PARENT_SCOPE)
endfunction()

attune_llvm_config(llvm_version --version)
if(NOT llvm_version VERSION_GREATER_EQUAL 19 OR NOT llvm_version VERSION_LESS 20)
  message(FATAL_ERROR "LLVM 19 is needed, but ${ATTUNE_LLVM_CONFIG} belongs to LLVM ${llvm_version}")
endif()
attune_llvm_config(llvm_include_dir --includedir)
attune_llvm_config(llvm_libraries --link-static --libfiles object support)
separate_arguments(llvm_libraries UNIX_COMMAND "${llvm_libraries}")

add_library(attune_llvm INTERFACE)
target_include_directories(attune_llvm SYSTEM INTERFACE ${llvm_include_dir})
target_link_libraries(attune_llvm INTERFACE ${llvm_libraries} attune_zlib attune_zstd Threads::Threads rt m
                                            ${CMAKE_DL_LIBS})
