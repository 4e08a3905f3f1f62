/* Open lengths: a context is bound to the lengths of a run by the package's own kernel, see `Bound` there. */
#include <string.h>

#include "layout.h"
#include "program.h"

static int64_t address(const void *of)
{
    return (int64_t)(intptr_t)of;
}

size_t mgx_bound_words(const mgx_plan *plan)
{
    const mgx_sizes *sizes = &plan->sizes;
    const size_t steps = plan->step_count + 1;
    if (!sizes->symbol_count)
        return 0;
    return BOUND_WORDS + sizes->constant_count + sizes->symbol_count + sizes->row_count + steps * (STEP_WORDS + 2)
           + sizes->axis_count + plan->output_count * MGX_ROOMS_EACH + sizes->patch_count * PATCH_WORDS;
}

void mgx_make_bound(const mgx_plan *plan, mgx_bound *bound, int64_t *memory, int64_t *job, int64_t *steps,
                    const int64_t *writes)
{
    const mgx_sizes *sizes = &plan->sizes;
    const size_t records = plan->step_count + 1, numbers = sizes->symbol_count + sizes->row_count;
    int64_t *block = bound->block = memory;
    int64_t *constants = block + BOUND_WORDS;
    int64_t *values = bound->values = constants + sizes->constant_count;
    int64_t *templates = values + numbers;
    int64_t *kept = templates + records * STEP_WORDS, *positions = kept + records, *lens = positions + records;
    int64_t *rooms = lens + sizes->axis_count, *patches = rooms + plan->output_count * MGX_ROOMS_EACH;
    memcpy(block, sizes->words, BOUND_WORDS * sizeof *block);
    memcpy(constants, sizes->constants, sizes->constant_count * sizeof *constants);
    memset(values, 0, numbers * sizeof *values);
    memcpy(templates, steps, records * STEP_WORDS * sizeof *templates);
    memcpy(patches, plan->patches, sizes->patch_count * PATCH_WORDS * sizeof *patches);
    job[JOB_PATCHES] = address(patches);
    job[JOB_BINDING] = address(block);
    block[BOUND_VALUES] = address(values);
    block[BOUND_ROWS] = address(sizes->rows);
    block[BOUND_RANGES] = address(sizes->ranges);
    block[BOUND_SOURCES] = address(sizes->sources);
    block[BOUND_NUMBERS] = address(sizes->numbers);
    block[BOUND_WRITES] = address(writes);
    block[BOUND_AXES] = address(sizes->axes);
    block[BOUND_BYTES] = address(sizes->bytes);
    block[BOUND_EVALUATE] = (int64_t)(intptr_t)MGX_EXECUTOR_EVALUATE;
    block[BOUND_BIND] = (int64_t)(intptr_t)MGX_EXECUTOR_BIND;
    block[BOUND_JOB] = address(job);
    block[BOUND_TEMPLATE] = address(templates);
    block[BOUND_KEPT] = address(kept);
    block[BOUND_POSITIONS] = address(positions);
    block[BOUND_LENS] = address(lens);
    block[BOUND_ROOMS] = address(rooms);
    block[BOUND_ALLOWED] = INT64_MAX; /* outputs are the caller's, or memory that can be refused */
}

const int64_t *mgx_bound_lens(const mgx_bound *bound)
{
    return (const int64_t *)(intptr_t)bound->block[BOUND_LENS];
}

int64_t mgx_bound_steps(const mgx_bound *bound)
{
    return bound->block[BOUND_RECORDS];
}

/* Let the arena grow. */
static mgx_status make_room(mgx_bound *bound)
{
    int64_t *block = bound->block;
    const int64_t needed = block[BOUND_NEEDED], spare = block[BOUND_CAPACITY] ? needed / 4 : 0;
    mgx_give_pages(bound->pages, bound->pages_bytes);
    bound->pages = NULL;
    bound->pages_bytes = 0;
    block[BOUND_CAPACITY] = 0;
    const unsigned char *arena = mgx_take_pages((size_t)(needed + spare), &bound->pages, &bound->pages_bytes);
    if (!arena) {
        bound->pages = NULL;
        bound->pages_bytes = 0;
        return mgx_fail(MGX_OUT_OF_MEMORY, "run: no memory for %lld bytes of what is computed on the way to results",
                        (long long)needed);
    }
    block[BOUND_ARENA] = address(arena);
    block[BOUND_CAPACITY] = needed + spare;
    return MGX_SUCCESS;
}

mgx_status mgx_settle(const mgx_plan *plan, mgx_bound *bound, const mgx_inputs *inputs)
{
    int64_t given[plan->sizes.symbol_count], *block = bound->block;
    mgx_status status = mgx_read_lens(plan, inputs, given);
    if (status)
        return status;
    if (block[BOUND_READY] && !memcmp(bound->values, given, sizeof given))
        return MGX_SUCCESS;
    memcpy(bound->values, given, sizeof given);
    MGX_EXECUTOR_BIND(block, 0, 0);
    if (block[BOUND_STATUS] == STATUS_ROOM) {
        status = make_room(bound);
        if (status)
            return status;
        MGX_EXECUTOR_BIND(block, 0, 0);
    }
    if (block[BOUND_STATUS] == STATUS_UNSERVED)
        return mgx_fail(MGX_UNSERVED, "run: the library does not serve these lengths of the inputs");
    if (block[BOUND_STATUS] != STATUS_BOUND)
        return mgx_fail(MGX_BAD_PARAM, "run: these lengths of the inputs are too large");
    return MGX_SUCCESS;
}
