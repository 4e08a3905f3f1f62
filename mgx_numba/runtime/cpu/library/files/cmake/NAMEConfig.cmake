# The library of the model @NAME@: find_package(@NAME@) gives the target @NAME@::@NAME@.
get_filename_component(_mgx_prefix "${CMAKE_CURRENT_LIST_DIR}/../../.." ABSOLUTE)
if(NOT EXISTS "${_mgx_prefix}/lib/lib@NAME@.so")
  set(@NAME@_FOUND FALSE)
  set(@NAME@_NOT_FOUND_MESSAGE
      "lib@NAME@.so is not linked yet: cmake -S ${_mgx_prefix}/lib/@NAME@-objects -B build && cmake --build build")
  return()
endif()
if(NOT TARGET @NAME@::@NAME@)
  add_library(@NAME@::@NAME@ SHARED IMPORTED)
  set_target_properties(@NAME@::@NAME@ PROPERTIES
    IMPORTED_LOCATION "${_mgx_prefix}/lib/lib@NAME@.so"
    IMPORTED_SONAME "lib@NAME@.so"
    INTERFACE_INCLUDE_DIRECTORIES "${_mgx_prefix}/include"
    INTERFACE_COMPILE_FEATURES "cxx_std_11"
    INTERFACE_LINK_LIBRARIES "${CMAKE_DL_LIBS}")
endif()
unset(_mgx_prefix)
