# The installed package: find_package(attune) gives attune::attune, pkg-config gives attune.

include(CMakePackageConfigHelpers)

set(package_dir ${CMAKE_INSTALL_LIBDIR}/cmake/attune)

install(TARGETS attune EXPORT attune)
foreach(module base runtime)
  if(IS_DIRECTORY ${PROJECT_SOURCE_DIR}/${module}/include/attune)
    install(DIRECTORY ${PROJECT_SOURCE_DIR}/${module}/include/attune DESTINATION ${CMAKE_INSTALL_INCLUDEDIR})
  endif()
endforeach()
if(TARGET attune_cli)
  install(TARGETS attune_cli)
endif()
if(TARGET attune_worker)
  install(TARGETS attune_worker DESTINATION ${CMAKE_INSTALL_LIBEXECDIR}/attune)
endif()

install(EXPORT attune NAMESPACE attune:: FILE attuneConfig.cmake DESTINATION ${package_dir})
write_basic_package_version_file(${PROJECT_BINARY_DIR}/attuneConfigVersion.cmake COMPATIBILITY SameMinorVersion)
install(FILES ${PROJECT_BINARY_DIR}/attuneConfigVersion.cmake DESTINATION ${package_dir})

# Relative to the file itself, so that an installed tree can be moved.
file(RELATIVE_PATH ATTUNE_PC_PREFIX /prefix/${CMAKE_INSTALL_LIBDIR}/pkgconfig /prefix)
configure_file(${PROJECT_SOURCE_DIR}/cmake/attune.pc.in ${PROJECT_BINARY_DIR}/attune.pc @ONLY)
install(FILES ${PROJECT_BINARY_DIR}/attune.pc DESTINATION ${CMAKE_INSTALL_LIBDIR}/pkgconfig)
