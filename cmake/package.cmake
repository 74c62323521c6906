# `cpack`, which `./dev package` calls: Debian packages from the install rules. swiglu has the library, the command
# and what building with it takes; swiglu-mpi, where there is an MPI, the same on ranks.
set(CPACK_GENERATOR DEB)
set(CPACK_COMPONENTS_ALL swiglu)
set(CPACK_PACKAGE_NAME swiglu)
set(CPACK_PACKAGE_CONTACT "The authors of swiglu <authors@swiglu.invalid>")
set(CPACK_PACKAGING_INSTALL_PREFIX /usr)
set(CPACK_STRIP_FILES ON)
set(CPACK_INSTALL_DEFAULT_DIRECTORY_PERMISSIONS
  OWNER_READ OWNER_WRITE OWNER_EXECUTE GROUP_READ GROUP_EXECUTE WORLD_READ WORLD_EXECUTE)

set(CPACK_DEB_COMPONENT_INSTALL ON)
set(CPACK_DEBIAN_FILE_NAME DEB-DEFAULT)
set(CPACK_DEBIAN_PACKAGE_SECTION libdevel)
set(CPACK_DEBIAN_PACKAGE_PRIORITY optional)
set(CPACK_DEBIAN_PACKAGE_SHLIBDEPS ON)
set(CPACK_DEBIAN_PACKAGE_SHLIBDEPS_PRIVATE_DIRS ${CMAKE_LIBRARY_OUTPUT_DIRECTORY})
set(CPACK_DEBIAN_PACKAGE_GENERATE_SHLIBS ON)

set(CPACK_DEBIAN_SWIGLU_PACKAGE_NAME swiglu)
set(CPACK_DEBIAN_SWIGLU_DESCRIPTION "A C++20 library and a command that compute this sublayer from the weights of
a checkpoint, with the same bits whatever the batch, the number of threads and
the instruction set, and that check, compare and convert checkpoints.")
install(FILES packaging/copyright DESTINATION ${CMAKE_INSTALL_DATADIR}/doc/swiglu COMPONENT swiglu)

if(TARGET swiglu_mpi)
  list(APPEND CPACK_COMPONENTS_ALL mpi)
  set(CPACK_DEBIAN_MPI_PACKAGE_NAME swiglu-mpi)
  set(CPACK_DEBIAN_MPI_PACKAGE_DEPENDS "swiglu (= ${PROJECT_VERSION})")
  if("${MPI_CXX_LIBRARIES};${MPI_CXX_INCLUDE_DIRS}" MATCHES openmpi)  # mpirun, without which nothing starts
    string(APPEND CPACK_DEBIAN_MPI_PACKAGE_DEPENDS ", openmpi-bin")
  elseif("${MPI_CXX_LIBRARIES};${MPI_CXX_INCLUDE_DIRS}" MATCHES mpich)
    string(APPEND CPACK_DEBIAN_MPI_PACKAGE_DEPENDS ", mpich")
  endif()
  set(CPACK_DEBIAN_MPI_DESCRIPTION "The library and the command that spread a layer of swiglu over processes, each
with its share of the weights, with the bits of one process.")
  install(FILES packaging/copyright DESTINATION ${CMAKE_INSTALL_DATADIR}/doc/swiglu-mpi COMPONENT mpi)
endif()
include(CPack)
