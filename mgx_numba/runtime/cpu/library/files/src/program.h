/* Programs, their contexts, and the tensors of a run. */
#ifndef MGX_PROGRAM_H
#define MGX_PROGRAM_H

#include "plan.h"

/* Open lengths: what a context has of them. */
typedef struct {
    int64_t *block, *values;
    void *pages;
    size_t pages_bytes;
} mgx_bound;

/* What one run of a plan owns: an arena, argument blocks and counters. */
typedef struct mgx_context {
    struct mgx_context *next;
    void *block, *pages;
    size_t pages_bytes;
    int64_t *job, *bases;
    mgx_bound bound; /* of open lengths */
} mgx_context;

/* Of a plan: idle contexts, and the writes of open lengths, with the places of these weights. */
typedef struct {
    mgx_context *idle;
    size_t idle_count, idle_limit;
    int64_t *writes;
} mgx_loaded;

struct mgx_program {
    mgx_weights weights;
    int threads;
    mgx_loaded *plans;
};

/* A result of a node. `given` is the caller's tensor, which a message calls `name`, for the node to fill; NULL: memory is
 * taken. `tensor` is what was made, `block` its memory if that was taken. */
typedef struct {
    const mgx_tensor *given;
    const char *name;
    mgx_tensor tensor;
    mgx_block *block;
} mgx_result;

/* The inputs of a node, in any order. */
typedef struct {
    const mgx_tensor *tensors;
    size_t count;
} mgx_inputs;

/* bind.c */
const mgx_tensor *mgx_find(const char *name, const mgx_inputs *inputs, size_t likely);
mgx_status mgx_check_apart(const mgx_inputs *inputs, const mgx_tensor *outputs);
mgx_status mgx_make_tensor(mgx_tensor declared, const int64_t *lens, mgx_result *result, mgx_block **blocks);
mgx_status mgx_fill_given(mgx_result *result); /* with a tensor that was made elsewhere */

/* Check the tensors of a run and write the addresses of parameters, then of outputs; take memory for results that are not
 * given. `lens` are those of all, one after the other; NULL where they are as declared. */
mgx_status mgx_bind(const mgx_plan *plan, const mgx_inputs *inputs, mgx_result *results, mgx_block **blocks,
                    int64_t *bases, const int64_t *lens);

/* Check the lengths of the inputs, which may have no data; `lens` as for `mgx_bind`. */
mgx_status mgx_check_lens(const mgx_plan *plan, const mgx_inputs *inputs, const int64_t *lens);

/* The lengths of inputs: `sources` of the plan has a parameter and an axis for each. */
mgx_status mgx_read_lens(const mgx_plan *plan, const mgx_inputs *inputs, int64_t *values);

/* sizes.c */
size_t mgx_bound_words(const mgx_plan *plan); /* that a context needs for it */
void mgx_make_bound(const mgx_plan *plan, mgx_bound *bound, int64_t *memory, int64_t *job, int64_t *steps,
                    const int64_t *writes);
mgx_status mgx_settle(const mgx_plan *plan, mgx_bound *bound, const mgx_inputs *inputs);
const int64_t *mgx_bound_lens(const mgx_bound *bound);
int64_t mgx_bound_steps(const mgx_bound *bound);

/* contexts.c */
mgx_status mgx_load_plans(mgx_program *program);
void mgx_free_plans(mgx_program *program);
mgx_status mgx_run_plan(mgx_program *program, size_t plan, const mgx_inputs *inputs, mgx_result *results,
                        mgx_block **blocks);
mgx_status mgx_plan_lens(mgx_program *program, size_t plan, const mgx_inputs *inputs, size_t *lens);

/* stages.c: MGX_UNSERVED if no plan serves the lengths */
mgx_status mgx_run_node(mgx_program *program, const mgx_node *node, const mgx_inputs *inputs, mgx_result *results,
                        mgx_block **blocks);
mgx_status mgx_node_lens(mgx_program *program, const mgx_node *node, const mgx_inputs *inputs, size_t *lens);

#endif
