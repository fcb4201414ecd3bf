# Installs the headers and a relocatable package. Nothing in it depends on the machine that installs it.
include(CMakePackageConfigHelpers)

set(convoy_package_dir ${CMAKE_INSTALL_DATADIR}/cmake/convoy)
install(DIRECTORY ${PROJECT_SOURCE_DIR}/include/ DESTINATION ${CMAKE_INSTALL_INCLUDEDIR}
        FILES_MATCHING PATTERN "*.hpp" PATTERN "*.cuh" PATTERN "*.inc")
install(FILES ${PROJECT_SOURCE_DIR}/LICENSE DESTINATION ${CMAKE_INSTALL_DOCDIR})
install(TARGETS convoy EXPORT convoy-targets)
install(EXPORT convoy-targets NAMESPACE convoy:: DESTINATION ${convoy_package_dir})
configure_package_config_file(${PROJECT_SOURCE_DIR}/cmake/convoyConfig.cmake.in
                              ${PROJECT_BINARY_DIR}/convoyConfig.cmake INSTALL_DESTINATION ${convoy_package_dir})
write_basic_package_version_file(${PROJECT_BINARY_DIR}/convoyConfigVersion.cmake COMPATIBILITY SameMinorVersion
                                 ARCH_INDEPENDENT)
install(FILES ${PROJECT_BINARY_DIR}/convoyConfig.cmake ${PROJECT_BINARY_DIR}/convoyConfigVersion.cmake
              ${PROJECT_SOURCE_DIR}/cmake/convoy-components.cmake DESTINATION ${convoy_package_dir})
