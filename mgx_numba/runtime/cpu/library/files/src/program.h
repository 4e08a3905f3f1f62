/* The tensors of a library, and how a run's are held to them. */
#ifndef MGX_PROGRAM_H
#define MGX_PROGRAM_H

#include "mgx_numba.h"

extern const mgx_tensor mgx_these_parameters[], mgx_these_outputs[];

/* Check the tensors of a run and write the addresses of parameters, then of outputs. */
mgx_status mgx_bind(const mgx_tensor *inputs, size_t input_count, const mgx_tensor *outputs, size_t output_count,
                    int64_t *bases);

#endif
