# MIGraphX's C and C++ interfaces: find_package(migraphx) gives the target migraphx::c. For C++ it is headers alone; C
# programs link the library migraphx_c, which is built with them if the project has the language CXX.
include(CMakeFindDependencyMacro)
find_dependency(Threads)
if(NOT TARGET migraphx::c)
  get_filename_component(_mgx_prefix "${CMAKE_CURRENT_LIST_DIR}/../../.." ABSOLUTE)
  add_library(migraphx::c INTERFACE IMPORTED)
  set_target_properties(migraphx::c PROPERTIES
    INTERFACE_INCLUDE_DIRECTORIES "${_mgx_prefix}/include"
    INTERFACE_LINK_LIBRARIES "Threads::Threads;${CMAKE_DL_LIBS}")
  if(CMAKE_CXX_COMPILER)
    set_property(TARGET migraphx::c PROPERTY INTERFACE_COMPILE_FEATURES "cxx_std_11")
    add_library(migraphx_c SHARED EXCLUDE_FROM_ALL "${_mgx_prefix}/include/migraphx/migraphx.cpp")
    target_compile_features(migraphx_c PRIVATE cxx_std_11)
    target_link_libraries(migraphx_c PRIVATE Threads::Threads ${CMAKE_DL_LIBS})
    set_target_properties(migraphx_c PROPERTIES CXX_VISIBILITY_PRESET hidden)
    set_property(TARGET migraphx::c APPEND PROPERTY INTERFACE_LINK_LIBRARIES "$<$<LINK_LANGUAGE:C>:migraphx_c>")
  endif()
  unset(_mgx_prefix)
endif()
