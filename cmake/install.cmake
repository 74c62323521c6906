# Install rules: libraries, headers, CMake package, pkg-config files, the commands.
include(CMakePackageConfigHelpers)

install(TARGETS swiglu EXPORT swigluTargets
  LIBRARY DESTINATION ${CMAKE_INSTALL_LIBDIR} ARCHIVE DESTINATION ${CMAKE_INSTALL_LIBDIR})
install(DIRECTORY include/swiglu DESTINATION ${CMAKE_INSTALL_INCLUDEDIR} PATTERN mpi.hpp EXCLUDE)
if(TARGET swiglu_mpi)
  set_target_properties(swiglu_mpi PROPERTIES INSTALL_RPATH "$ORIGIN")
  install(TARGETS swiglu_mpi EXPORT swigluTargets
    LIBRARY DESTINATION ${CMAKE_INSTALL_LIBDIR} ARCHIVE DESTINATION ${CMAKE_INSTALL_LIBDIR})
  install(FILES include/swiglu/mpi.hpp DESTINATION ${CMAKE_INSTALL_INCLUDEDIR}/swiglu)
endif()
install(EXPORT swigluTargets NAMESPACE swiglu:: DESTINATION ${CMAKE_INSTALL_LIBDIR}/cmake/swiglu)
configure_package_config_file(cmake/swigluConfig.cmake.in ${CMAKE_BINARY_DIR}/swigluConfig.cmake
  INSTALL_DESTINATION ${CMAKE_INSTALL_LIBDIR}/cmake/swiglu)
write_basic_package_version_file(${CMAKE_BINARY_DIR}/swigluConfigVersion.cmake COMPATIBILITY SameMinorVersion)
install(FILES ${CMAKE_BINARY_DIR}/swigluConfig.cmake ${CMAKE_BINARY_DIR}/swigluConfigVersion.cmake
  DESTINATION ${CMAKE_INSTALL_LIBDIR}/cmake/swiglu)

# The pkg-config file finds the prefix from where it lies, so `cmake --install --prefix` may move it.
if(BUILD_SHARED_LIBS)
  set(SWIGLU_PC_REQUIRES_PRIVATE "")
else()
  set(SWIGLU_PC_REQUIRES_PRIVATE "zlib")
endif()
file(RELATIVE_PATH SWIGLU_PC_PREFIX ${CMAKE_INSTALL_FULL_LIBDIR}/pkgconfig ${CMAKE_INSTALL_PREFIX})
configure_file(cmake/swiglu.pc.in ${CMAKE_BINARY_DIR}/swiglu.pc @ONLY)
install(FILES ${CMAKE_BINARY_DIR}/swiglu.pc DESTINATION ${CMAKE_INSTALL_LIBDIR}/pkgconfig)
if(TARGET swiglu_mpi)
  configure_file(cmake/swiglu_mpi.pc.in ${CMAKE_BINARY_DIR}/swiglu_mpi.pc @ONLY)
  install(FILES ${CMAKE_BINARY_DIR}/swiglu_mpi.pc DESTINATION ${CMAKE_INSTALL_LIBDIR}/pkgconfig)
endif()

# Inside the Python package, whose build (pyproject.toml) installs this component and nothing else. A wheel holds no links.
if(SKBUILD)
  install(FILES $<TARGET_FILE:swiglu> DESTINATION swiglu/lib RENAME libswiglu.so.0 COMPONENT python)
  install(TARGETS swiglu-cli RUNTIME DESTINATION swiglu/bin COMPONENT python)
endif()
