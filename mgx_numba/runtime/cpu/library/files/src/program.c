/* Programs: what is loaded, and the contexts in which its runs take place. */
#define _GNU_SOURCE
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "layout.h"
#include "plan.h"
#include "program.h"

/* What one run owns: an arena, argument blocks and counters. */
typedef struct context {
    struct context *next;
    void *block, *pages;
    size_t pages_bytes;
    int64_t *job, *bases;
    mgx_bound bound; /* of open lengths */
} context;

struct mgx_program {
    mgx_weights weights;
    int threads;
    context *idle;
    size_t idle_count, idle_limit;
    int64_t *writes; /* of open lengths, with the places of these weights */
};

static int64_t address(const void *of)
{
    return (int64_t)(intptr_t)of;
}

/* `words` of a block that starts at `at`, rounded up to whole cache lines; moves `at` behind them. */
static int64_t *cut(unsigned char **at, size_t words)
{
    int64_t *start = (int64_t *)*at;
    *at += (words * sizeof(int64_t) + MGX_ALIGNMENT - 1) / MGX_ALIGNMENT * MGX_ALIGNMENT;
    return start;
}

static void place(const mgx_program *program, const unsigned char *arena, const int64_t *job, int64_t *slots)
{
    const mgx_plan *plan = &mgx_this_plan;
    const int64_t starts[] = {address(arena), address(program->weights.data), address(job)};
    memcpy(slots, plan->slots, plan->slot_count * sizeof *slots);
    for (size_t k = 0; k < plan->relocation_count; k++) {
        const mgx_relocation *one = &plan->relocations[k];
        slots[one->slot] = one->from == MGX_FROM_CODE ? (int64_t)(intptr_t)plan->kernels[one->offset]
                                                      : starts[one->from] + one->offset;
    }
}

static void free_context(context *old)
{
    mgx_give_pages(old->pages, old->pages_bytes);
    mgx_give_pages(old->bound.pages, old->bound.pages_bytes);
    free(old->block);
    free(old);
}

static context *new_context(const mgx_program *program)
{
    const mgx_plan *plan = &mgx_this_plan;
    const size_t records = plan->step_count + 1, parameters = mgx_this_library.parameter_count;
    const size_t bases = parameters + mgx_this_library.output_count;
    const size_t counts = records * (size_t)program->threads;
#if MGX_SYMBOL_COUNT
    const size_t open = mgx_bound_words();
#else
    const size_t open = 0;
#endif
    const size_t words = JOB_WORDS + records * STEP_WORDS + plan->slot_count + bases + counts + open;
    context *made = calloc(1, sizeof *made);
    unsigned char *arena = NULL;
    if (made && posix_memalign(&made->block, MGX_ALIGNMENT, words * sizeof(int64_t) + 6 * MGX_ALIGNMENT))
        made->block = NULL;
    if (made && made->block)
        arena = mgx_take_pages(plan->arena_bytes, &made->pages, &made->pages_bytes);
    if (!arena) {
        if (made)
            free(made->block);
        free(made);
        return NULL;
    }
    unsigned char *at = made->block;
    int64_t *job = made->job = cut(&at, JOB_WORDS);
    int64_t *steps = cut(&at, records * STEP_WORDS);
    int64_t *slots = cut(&at, plan->slot_count);
    made->bases = cut(&at, bases);
    memset(job, 0, JOB_WORDS * sizeof *job);
    memcpy(steps, plan->steps, records * STEP_WORDS * sizeof *steps);
    place(program, arena, job, slots);
    for (size_t k = 0; k < plan->step_count; k++) {
        int64_t *step = steps + k * STEP_WORDS;
        step[STEP_FUNCTION] = (int64_t)(intptr_t)plan->kernels[step[STEP_FUNCTION]];
        step[STEP_ARGS] = address(slots + plan->starts[k]);
    }
    job[JOB_STEPS] = address(steps);
    job[JOB_SLOTS] = address(slots);
    job[JOB_BASES] = address(made->bases);
    job[JOB_PATCHES] = address(plan->patches);
    job[JOB_POOL] = address(mgx_pool());
    job[JOB_THREADS] = program->threads;
    job[JOB_BRIEF] = plan->brief;
    job[JOB_LONG] = plan->is_long;
    job[JOB_SELF] = address(job);
    job[JOB_OPERATIONS] = address(plan->operations);
    job[JOB_LEADER] = (int64_t)(intptr_t)MGX_EXECUTOR_LEAD;
    job[JOB_TAKEN] = address(cut(&at, counts));
#if MGX_SYMBOL_COUNT
    mgx_make_bound(&made->bound, cut(&at, open), job, steps, program->writes);
#endif
    return made;
}

static context *take_context(mgx_program *program)
{
    mgx_lock();
    mgx_ensure_workers(program->threads);
    context *found = program->idle;
    if (found) {
        program->idle = found->next;
        program->idle_count--;
    }
    mgx_unlock();
    return found ? found : new_context(program);
}

static void give_context(mgx_program *program, context *used)
{
    mgx_lock();
    const size_t arena = used->bound.pages_bytes;
    const int kept = program->idle_count < program->idle_limit
                     && (!program->idle_count || (program->idle_count + 1) * arena <= MGX_IDLE_BYTES);
    if (kept) {
        used->next = program->idle;
        program->idle = used;
        program->idle_count++;
    }
    mgx_unlock();
    if (!kept)
        free_context(used);
}

/* How many threads a run takes; 0 if what was asked for is not possible, which the message says. */
static int choose_threads(const mgx_options *options)
{
    const char *variable = getenv("MGX_NUM_THREADS");
    int chosen = options->num_threads;
    if (!chosen && variable && *variable) {
        char *end;
        const long value = strtol(variable, &end, 10);
        chosen = *end || value < 1 || value > MGX_MAX_THREADS ? -1 : (int)value;
    }
    if (!chosen) {
        const int most = mgx_default_threads();
        chosen = mgx_this_plan.num_threads < most ? mgx_this_plan.num_threads : most;
    }
    if (chosen < 1 || chosen > MGX_MAX_THREADS) {
        mgx_fail(MGX_BAD_PARAM, "num_threads, or the environment variable MGX_NUM_THREADS: expected 1 to %d",
                 MGX_MAX_THREADS);
        return 0;
    }
    if (!mgx_this_plan.shares)
        return 1;
    for (size_t k = 0; k < mgx_this_plan.step_count; k++) {
        const int64_t *step = mgx_this_plan.steps + k * STEP_WORDS;
        if (step[STEP_TASKS] + (chosen + 1) * step[STEP_GRAIN] >= MGX_MAX_CLAIMS) {
            mgx_fail(MGX_BAD_PARAM, "%d threads are too many for step %zu of this program", chosen, k);
            return 0;
        }
    }
    return chosen;
}

static mgx_status load(const mgx_options *given, mgx_program **made)
{
    mgx_options options = {.size = sizeof options};
    if (!made)
        return mgx_fail(MGX_BAD_PARAM, "load: where to put the program is NULL");
    *made = NULL;
    if (given && given->size != sizeof options)
        return mgx_fail(MGX_BAD_PARAM, "load: mgx_options has a size of %zu bytes, expected %zu", given->size,
                        sizeof options);
    if (given)
        options = *given;
    mgx_status status = mgx_check_cpu();
    if (status)
        return status;
    const int threads = choose_threads(&options);
    if (!threads)
        return MGX_BAD_PARAM;
    mgx_program *program = calloc(1, sizeof *program);
    if (!program)
        return mgx_fail(MGX_OUT_OF_MEMORY, "no memory for a program");
    program->threads = threads;
    program->idle_limit = MGX_IDLE_BYTES / (mgx_this_plan.arena_bytes + 1);
    program->idle_limit += !program->idle_limit;
    status = mgx_load_weights(&options, &program->weights);
    if (status) {
        mgx_give_pages(program->weights.pages, program->weights.pages_bytes);
        free(program);
        return status;
    }
#if MGX_SYMBOL_COUNT
    const mgx_sizes *sizes = &mgx_this_plan.sizes;
    program->writes = malloc((sizes->write_count + 1) * WRITE_WORDS * sizeof(int64_t));
    if (!program->writes) {
        mgx_give_pages(program->weights.pages, program->weights.pages_bytes);
        free(program);
        return mgx_fail(MGX_OUT_OF_MEMORY, "no memory for a program");
    }
    memcpy(program->writes, sizes->writes, sizes->write_count * WRITE_WORDS * sizeof(int64_t));
    for (size_t k = 0; k < sizes->write_count; k++) {
        int64_t *base = &program->writes[k * WRITE_WORDS + WRITE_BASE];
        if (*base > WRITE_TO_PATCH)
            *base += address(program->weights.data) - WRITE_TO_PATCH - 1;
    }
#endif
    mgx_add_user();
    *made = program;
    return MGX_SUCCESS;
}

static void destroy(mgx_program *program)
{
    if (!program)
        return;
    mgx_remove_user();
    while (program->idle) {
        context *next = program->idle->next;
        free_context(program->idle);
        program->idle = next;
    }
    mgx_give_pages(program->weights.pages, program->weights.pages_bytes);
    free(program->writes);
    free(program);
}

/* What a step has met. */
static mgx_status fault(const int64_t *job)
{
    const mgx_check *check =
        &mgx_this_plan.checks[mgx_this_plan.first_check[job[JOB_FAULT] - 1] + job[JOB_FAULT_CHECK]];
    return mgx_fail(MGX_INDEX_OUT_OF_RANGE, "%s: index %lld is out of range for %s", check->who,
                    (long long)job[JOB_FAULT_INDEX], check->what);
}

static mgx_status no_memory(void)
{
    return mgx_fail(MGX_OUT_OF_MEMORY, "run: no memory for %zu bytes of what is computed on the way to results",
                    mgx_this_plan.arena_bytes);
}

static mgx_status run(mgx_program *program, const mgx_tensor *inputs, size_t input_count, const mgx_tensor *outputs,
                      size_t output_count)
{
    if (!program)
        return mgx_fail(MGX_BAD_PARAM, "run: the program is NULL");
    if ((!inputs && input_count) || (!outputs && output_count))
        return mgx_fail(MGX_BAD_PARAM, "run: the tensors are NULL");
    context *own = take_context(program);
    if (!own)
        return no_memory();
    mgx_status status = MGX_SUCCESS;
    int64_t steps = (int64_t)mgx_this_plan.step_count;
    const int64_t *lens = NULL;
#if MGX_SYMBOL_COUNT
    status = mgx_settle(&own->bound, inputs, input_count);
    steps = mgx_bound_steps(&own->bound);
    lens = mgx_bound_lens(&own->bound);
#endif
    if (!status)
        status = mgx_bind(inputs, input_count, outputs, output_count, own->bases, lens);
    if (!status) {
        own->job[JOB_FAULT] = 0;
        const unsigned old = mgx_enter_arithmetic();
#if MGX_JUMP_COUNT
        (void)steps;
        MGX_EXECUTOR_DRIVE(own->job, 0, (int64_t)mgx_this_plan.operation_count);
#else
        MGX_EXECUTOR_LEAD(own->job, 0, steps);
#endif
        mgx_leave_arithmetic(old);
        if (own->job[JOB_FAULT])
            status = fault(own->job);
    }
    give_context(program, own);
    return status;
}

static mgx_status output_lens(mgx_program *program, const mgx_tensor *inputs, size_t input_count, size_t *lens)
{
    if (!program || !lens || (!inputs && input_count))
        return mgx_fail(MGX_BAD_PARAM, "output_lens: the program, the tensors or where to put lengths is NULL");
    mgx_status status = MGX_SUCCESS;
#if MGX_SYMBOL_COUNT
    context *own = take_context(program);
    if (!own)
        return no_memory();
    status = mgx_settle(&own->bound, inputs, input_count);
    const int64_t *found = mgx_bound_lens(&own->bound);
    for (size_t k = 0; k < mgx_this_library.parameter_count; k++)
        found += mgx_these_parameters[k].rank;
    for (size_t k = 0; !status && k < mgx_this_library.output_count; k++)
        for (size_t axis = 0; axis < mgx_these_outputs[k].rank; axis++)
            *lens++ = (size_t)*found++;
    give_context(program, own);
#else
    for (size_t k = 0; k < mgx_this_library.output_count; k++)
        for (size_t axis = 0; axis < mgx_these_outputs[k].rank; axis++)
            *lens++ = mgx_these_outputs[k].lens[axis];
#endif
    return status;
}

const mgx_library mgx_this_library = {
    MGX_API_VERSION,
    MGX_LIBRARY_NAME,
    MGX_PARAMETER_COUNT,
    MGX_OUTPUT_COUNT,
    mgx_these_parameters,
    mgx_these_outputs,
    load,
    run,
    destroy,
    mgx_last_error,
    output_lens,
};

__attribute__((visibility("default"))) const mgx_library *MGX_LIBRARY_FUNCTION(void);
__attribute__((visibility("default"))) const mgx_library *mgx_get_library(void);

const mgx_library *MGX_LIBRARY_FUNCTION(void)
{
    return &mgx_this_library;
}

const mgx_library *mgx_get_library(void)
{
    return &mgx_this_library;
}
