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

# attune_embed_text(<variable> FILE <file> HEADER <header> NAMESPACE <namespace> SYMBOL <symbol>): the generated source
# that defines a std::string_view, which the header declares, with the file's text. Written anew when the file changes.
function(attune_embed_text variable)
  cmake_parse_arguments(PARSE_ARGV 1 arg "" "FILE;HEADER;NAMESPACE;SYMBOL" "")
  set(file ${CMAKE_CURRENT_SOURCE_DIR}/${arg_FILE})
  set_property(DIRECTORY APPEND PROPERTY CMAKE_CONFIGURE_DEPENDS ${file})
  file(READ ${file} text)
  set(output ${CMAKE_CURRENT_BINARY_DIR}/${arg_SYMBOL}.cpp)
  file(CONFIGURE OUTPUT ${output} @ONLY CONTENT [[// Made from @arg_FILE@.
#include "@arg_HEADER@"

namespace @arg_NAMESPACE@ {

const std::string_view @arg_SYMBOL@ = R"TEXT(@text@)TEXT";

}  // namespace @arg_NAMESPACE@
]])
  set(${variable} ${output} PARENT_SCOPE)
endfunction()
