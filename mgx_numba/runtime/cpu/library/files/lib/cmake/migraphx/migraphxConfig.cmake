# MIGraphX's C++ interface: find_package(migraphx) gives the target migraphx::c, which is headers alone.
include(CMakeFindDependencyMacro)
find_dependency(Threads)
if(NOT TARGET migraphx::c)
  get_filename_component(_mgx_prefix "${CMAKE_CURRENT_LIST_DIR}/../../.." ABSOLUTE)
  add_library(migraphx::c INTERFACE IMPORTED)
  set_target_properties(migraphx::c PROPERTIES
    INTERFACE_INCLUDE_DIRECTORIES "${_mgx_prefix}/include"
    INTERFACE_COMPILE_FEATURES "cxx_std_11"
    INTERFACE_LINK_LIBRARIES "Threads::Threads;${CMAKE_DL_LIBS}")
  unset(_mgx_prefix)
endif()
