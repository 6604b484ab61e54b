# What the modules' objects become: attune_core, the archive behind the command and the tests; attune, the shared
# library that others link to; and attune-worker, the process that measures.

list(TRANSFORM ATTUNE_MODULES PREPEND attune_ OUTPUT_VARIABLE modules)

add_library(attune_core STATIC)
target_link_libraries(attune_core PUBLIC ${modules} PRIVATE attune_options)

add_library(attune SHARED)
add_library(attune::attune ALIAS attune)
set_target_properties(attune PROPERTIES VERSION ${PROJECT_VERSION} SOVERSION ${PROJECT_VERSION_MAJOR})
target_compile_features(attune INTERFACE cxx_std_20)
target_link_libraries(attune PRIVATE ${modules} attune_options)
# The archives' symbols stay inside: that keeps the interface ours, and lets archives built without -fPIC be linked.
set(exports ${PROJECT_SOURCE_DIR}/cmake/exports.map)
target_link_options(attune PRIVATE -Wl,--exclude-libs,ALL -Wl,--version-script=${exports})
set_target_properties(attune PROPERTIES LINK_DEPENDS ${exports})
if(NOT ATTUNE_SANITIZE)
  target_link_options(attune PRIVATE -Wl,--no-undefined)
endif()
foreach(module base runtime)
  target_include_directories(attune INTERFACE $<BUILD_INTERFACE:${PROJECT_SOURCE_DIR}/${module}/include>)
endforeach()
target_include_directories(attune INTERFACE $<INSTALL_INTERFACE:${CMAKE_INSTALL_INCLUDEDIR}>)

file(GLOB worker_sources CONFIGURE_DEPENDS ${PROJECT_SOURCE_DIR}/tuner/worker/*.cpp)
if(worker_sources)
  add_executable(attune_worker ${worker_sources})
  set_target_properties(attune_worker PROPERTIES OUTPUT_NAME attune-worker)
  target_compile_definitions(attune_worker PRIVATE ATTUNE_VERSION="${PROJECT_VERSION}")
  target_link_libraries(attune_worker PRIVATE attune_core attune_options)
endif()
