/* The tensors of a library, and how a run's are held to them. */
#ifndef MGX_PROGRAM_H
#define MGX_PROGRAM_H

#include "mgx_numba.h"

extern const mgx_tensor mgx_these_parameters[], mgx_these_outputs[];

/* Check the tensors of a run and write the addresses of parameters, then of outputs. `lens` are those of all, one after
 * the other; NULL where they are as declared. */
mgx_status mgx_bind(const mgx_tensor *inputs, size_t input_count, const mgx_tensor *outputs, size_t output_count,
                    int64_t *bases, const int64_t *lens);

/* The lengths of inputs: `sources` has a parameter and an axis for each. */
mgx_status mgx_read_lens(const mgx_tensor *inputs, size_t input_count, const int64_t *sources, size_t count,
                         int64_t *values);

/* Open lengths: what a context has of them. */
typedef struct {
    int64_t *block, *values;
    void *pages;
    size_t pages_bytes;
} mgx_bound;

size_t mgx_bound_words(void); /* that a context needs for it */
void mgx_make_bound(mgx_bound *bound, int64_t *memory, int64_t *job, int64_t *steps, const int64_t *writes);
mgx_status mgx_settle(mgx_bound *bound, const mgx_tensor *inputs, size_t input_count);
const int64_t *mgx_bound_lens(const mgx_bound *bound);
int64_t mgx_bound_steps(const mgx_bound *bound);

#endif
