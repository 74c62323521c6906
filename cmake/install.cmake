# Install rules: libraries, headers, CMake package, pkg-config files, the commands with their manual pages and
# completion. Component swiglu is the package of that name, mpi is what swiglu-mpi adds; cmake/package.cmake.
include(CMakePackageConfigHelpers)
set(SWIGLU_INSTALL_CMAKEDIR ${CMAKE_INSTALL_LIBDIR}/cmake/swiglu)

install(TARGETS swiglu EXPORT swigluTargets COMPONENT swiglu
  LIBRARY DESTINATION ${CMAKE_INSTALL_LIBDIR} ARCHIVE DESTINATION ${CMAKE_INSTALL_LIBDIR})
install(DIRECTORY include/swiglu DESTINATION ${CMAKE_INSTALL_INCLUDEDIR} COMPONENT swiglu PATTERN mpi.hpp EXCLUDE)
install(EXPORT swigluTargets NAMESPACE swiglu:: DESTINATION ${SWIGLU_INSTALL_CMAKEDIR} COMPONENT swiglu)
configure_package_config_file(cmake/swigluConfig.cmake.in ${CMAKE_BINARY_DIR}/swigluConfig.cmake
  INSTALL_DESTINATION ${SWIGLU_INSTALL_CMAKEDIR})
write_basic_package_version_file(${CMAKE_BINARY_DIR}/swigluConfigVersion.cmake COMPATIBILITY SameMinorVersion)
install(FILES ${CMAKE_BINARY_DIR}/swigluConfig.cmake ${CMAKE_BINARY_DIR}/swigluConfigVersion.cmake
  DESTINATION ${SWIGLU_INSTALL_CMAKEDIR} COMPONENT swiglu)

# An export of its own, so that swiglu is found where the package with libswiglu_mpi is not installed.
if(TARGET swiglu_mpi)
  set_target_properties(swiglu_mpi PROPERTIES INSTALL_RPATH "$ORIGIN")
  install(TARGETS swiglu_mpi EXPORT swiglu_mpiTargets COMPONENT mpi
    LIBRARY DESTINATION ${CMAKE_INSTALL_LIBDIR} ARCHIVE DESTINATION ${CMAKE_INSTALL_LIBDIR})
  install(FILES include/swiglu/mpi.hpp DESTINATION ${CMAKE_INSTALL_INCLUDEDIR}/swiglu COMPONENT mpi)
  install(EXPORT swiglu_mpiTargets NAMESPACE swiglu:: DESTINATION ${SWIGLU_INSTALL_CMAKEDIR} COMPONENT mpi)
endif()

# The pkg-config file finds the prefix from where it lies, so `cmake --install --prefix` may move it.
if(BUILD_SHARED_LIBS)
  set(SWIGLU_PC_REQUIRES_PRIVATE "")
else()
  set(SWIGLU_PC_REQUIRES_PRIVATE "zlib")
endif()
file(RELATIVE_PATH SWIGLU_PC_PREFIX ${CMAKE_INSTALL_FULL_LIBDIR}/pkgconfig ${CMAKE_INSTALL_PREFIX})
configure_file(cmake/swiglu.pc.in ${CMAKE_BINARY_DIR}/swiglu.pc @ONLY)
install(FILES ${CMAKE_BINARY_DIR}/swiglu.pc DESTINATION ${CMAKE_INSTALL_LIBDIR}/pkgconfig COMPONENT swiglu)
if(TARGET swiglu_mpi)
  configure_file(cmake/swiglu_mpi.pc.in ${CMAKE_BINARY_DIR}/swiglu_mpi.pc @ONLY)
  install(FILES ${CMAKE_BINARY_DIR}/swiglu_mpi.pc DESTINATION ${CMAKE_INSTALL_LIBDIR}/pkgconfig COMPONENT mpi)
endif()

# swiglu_install_command(TARGET NAME COMPONENT)
function(swiglu_install_command target name component)
  install(TARGETS ${target} RUNTIME DESTINATION ${CMAKE_INSTALL_BINDIR} COMPONENT ${component})
  install(FILES packaging/${name}.1 DESTINATION ${CMAKE_INSTALL_MANDIR}/man1 COMPONENT ${component})
  install(FILES packaging/completion.bash RENAME ${name}
    DESTINATION ${CMAKE_INSTALL_DATADIR}/bash-completion/completions COMPONENT ${component})
endfunction()
if(TARGET swiglu-cli)
  swiglu_install_command(swiglu-cli swiglu swiglu)
endif()
if(TARGET swiglu-mpi-cli)
  swiglu_install_command(swiglu-mpi-cli swiglu-mpi mpi)
endif()

# Inside the Python package, whose build (pyproject.toml) installs this component and nothing else. A wheel holds no links.
if(SKBUILD)
  install(FILES $<TARGET_FILE:swiglu> DESTINATION swiglu/lib RENAME libswiglu.so.0 COMPONENT python)
  install(TARGETS swiglu-cli RUNTIME DESTINATION swiglu/bin COMPONENT python)
endif()
