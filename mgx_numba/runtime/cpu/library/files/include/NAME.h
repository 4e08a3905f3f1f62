/* The library of the model @NAME@. */
#ifndef MGX_LIBRARY_@NAME@_H
#define MGX_LIBRARY_@NAME@_H

#include "mgx_numba.h"

#ifdef __cplusplus
extern "C" {
#endif

const mgx_library *@NAME@_library(void);

#ifdef __cplusplus
}
#endif

#endif
