# The target "bundle": <build>/bundle/ with the stripped programs, the shared library, the peers' benchmark scripts and, in
# training/, the training example, for a machine that has a GPU but nothing installed to build with.

set(bundled)
foreach(target attune_cli attune_worker attune attune_gpu)
  if(TARGET ${target})
    list(APPEND bundled ${target})
  endif()
endforeach()
set(bundle_dir ${PROJECT_BINARY_DIR}/bundle)
set(bundle_commands COMMAND ${CMAKE_COMMAND} -E rm -rf ${bundle_dir} COMMAND ${CMAKE_COMMAND} -E make_directory
                            ${bundle_dir})
foreach(target IN LISTS bundled)
  get_target_property(type ${target} TYPE)
  set(name $<TARGET_FILE_NAME:${target}>)
  if(type STREQUAL "SHARED_LIBRARY")
    set(name $<TARGET_SONAME_FILE_NAME:${target}>)
  endif()
  list(APPEND bundle_commands COMMAND ${CMAKE_STRIP} -o ${bundle_dir}/${name} $<TARGET_FILE:${target}>)
endforeach()
file(GLOB peers CONFIGURE_DEPENDS ${PROJECT_SOURCE_DIR}/bench/peers/*.py
     ${PROJECT_SOURCE_DIR}/bench/peers/*.csv ${PROJECT_SOURCE_DIR}/bench/peers/*.txt)
if(peers)
  list(APPEND bundle_commands COMMAND ${CMAKE_COMMAND} -E copy ${peers} ${bundle_dir})
endif()
file(GLOB training CONFIGURE_DEPENDS ${PROJECT_SOURCE_DIR}/examples/training/*.py)
list(APPEND bundle_commands COMMAND ${CMAKE_COMMAND} -E make_directory ${bundle_dir}/training
                            COMMAND ${CMAKE_COMMAND} -E copy ${training} ${bundle_dir}/training)
add_custom_target(bundle ${bundle_commands} DEPENDS ${bundled} VERBATIM)
