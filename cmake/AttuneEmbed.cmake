# attune_embed(<variable>): the generated source that holds the current folder's device code. It is written anew when
# any of the .cuh files changes.
function(attune_embed variable)
  file(GLOB_RECURSE files CONFIGURE_DEPENDS RELATIVE ${CMAKE_CURRENT_SOURCE_DIR} ${CMAKE_CURRENT_SOURCE_DIR}/*.cuh)
  list(SORT files)
  list(JOIN files "|" joined)
  set(script ${PROJECT_SOURCE_DIR}/cmake/embed.cmake)
  set(output ${CMAKE_CURRENT_BINARY_DIR}/embedded_files.cpp)
  list(TRANSFORM files PREPEND ${CMAKE_CURRENT_SOURCE_DIR}/ OUTPUT_VARIABLE dependencies)
  add_custom_command(
    OUTPUT ${output}
    COMMAND ${CMAKE_COMMAND} -DROOT=${CMAKE_CURRENT_SOURCE_DIR} "-DFILES=${joined}" -DOUTPUT=${output} -P ${script}
    DEPENDS ${script} ${dependencies}
    COMMENT "Embedding device code"
    VERBATIM)
  set(${variable} ${output} PARENT_SCOPE)
endfunction()
