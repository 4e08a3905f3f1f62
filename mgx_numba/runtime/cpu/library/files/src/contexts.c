/* Runs of plans, and the contexts in which they take place. */
#include <stdlib.h>
#include <string.h>

#include "layout.h"
#include "program.h"

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

static void place(const mgx_program *program, const mgx_plan *plan, const unsigned char *arena, const int64_t *job,
                  int64_t *slots)
{
    const int64_t starts[] = {address(arena), address(program->weights.data), address(job)};
    memcpy(slots, plan->slots, plan->slot_count * sizeof *slots);
    for (size_t k = 0; k < plan->relocation_count; k++) {
        const mgx_relocation *one = &plan->relocations[k];
        slots[one->slot] = one->from == MGX_FROM_CODE ? (int64_t)(intptr_t)plan->kernels[one->offset]
                                                      : starts[one->from] + one->offset;
    }
}

static int threads_of(const mgx_program *program, const mgx_plan *plan)
{
    return plan->shares ? program->threads : 1;
}

static void free_context(mgx_context *old)
{
    mgx_give_pages(old->pages, old->pages_bytes);
    mgx_give_pages(old->bound.pages, old->bound.pages_bytes);
    free(old->block);
    free(old);
}

static mgx_context *new_context(const mgx_program *program, const mgx_plan *plan, const int64_t *writes)
{
    const int threads = threads_of(program, plan);
    const size_t records = plan->step_count + 1, bases = plan->parameter_count + plan->output_count;
    const size_t counts = records * (size_t)threads, open = mgx_bound_words(plan);
    const size_t words = JOB_WORDS + records * STEP_WORDS + plan->slot_count + bases + counts + open;
    mgx_context *made = calloc(1, sizeof *made);
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
    place(program, plan, arena, job, slots);
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
    job[JOB_THREADS] = threads;
    job[JOB_BRIEF] = plan->brief;
    job[JOB_LONG] = plan->is_long;
    job[JOB_SELF] = address(job);
    job[JOB_OPERATIONS] = address(plan->operations);
    job[JOB_LEADER] = (int64_t)(intptr_t)MGX_EXECUTOR_LEAD;
    job[JOB_TAKEN] = address(cut(&at, counts));
    if (open)
        mgx_make_bound(plan, &made->bound, cut(&at, open), job, steps, writes);
    return made;
}

static mgx_context *take_context(mgx_program *program, size_t number)
{
    const mgx_plan *plan = &mgx_this_content.plans[number];
    mgx_loaded *loaded = &program->plans[number];
    mgx_lock();
    mgx_ensure_workers(threads_of(program, plan));
    mgx_context *found = loaded->idle;
    if (found) {
        loaded->idle = found->next;
        loaded->idle_count--;
    }
    mgx_unlock();
    if (!found)
        found = new_context(program, plan, loaded->writes);
    if (!found)
        mgx_fail(MGX_OUT_OF_MEMORY, "run: no memory for %zu bytes of what is computed on the way to results",
                 plan->arena_bytes);
    return found;
}

static void give_context(mgx_loaded *loaded, mgx_context *used)
{
    mgx_lock();
    const size_t arena = used->bound.pages_bytes;
    const int kept = loaded->idle_count < loaded->idle_limit
                     && (!loaded->idle_count || (loaded->idle_count + 1) * arena <= MGX_IDLE_BYTES);
    if (kept) {
        used->next = loaded->idle;
        loaded->idle = used;
        loaded->idle_count++;
    }
    mgx_unlock();
    if (!kept)
        free_context(used);
}

mgx_status mgx_load_plans(mgx_program *program)
{
    program->plans = calloc(mgx_this_content.plan_count, sizeof *program->plans);
    for (size_t number = 0; program->plans && number < mgx_this_content.plan_count; number++) {
        const mgx_plan *plan = &mgx_this_content.plans[number];
        mgx_loaded *loaded = &program->plans[number];
        for (size_t k = 0; plan->shares && k < plan->step_count; k++) {
            const int64_t *step = plan->steps + k * STEP_WORDS;
            if (step[STEP_TASKS] + (program->threads + 1) * step[STEP_GRAIN] >= MGX_MAX_CLAIMS)
                return mgx_fail(MGX_BAD_PARAM, "%d threads are too many for step %zu of this program",
                                program->threads, k);
        }
        loaded->idle_limit = MGX_IDLE_BYTES / (plan->arena_bytes + 1);
        loaded->idle_limit += !loaded->idle_limit;
        if (!plan->sizes.symbol_count)
            continue;
        const size_t count = plan->sizes.write_count;
        loaded->writes = malloc((count + 1) * WRITE_WORDS * sizeof(int64_t));
        if (!loaded->writes)
            return mgx_fail(MGX_OUT_OF_MEMORY, "no memory for a program");
        memcpy(loaded->writes, plan->sizes.writes, count * WRITE_WORDS * sizeof(int64_t));
        for (size_t k = 0; k < count; k++) {
            int64_t *base = &loaded->writes[k * WRITE_WORDS + WRITE_BASE];
            if (*base > WRITE_TO_PATCH)
                *base += address(program->weights.data) - WRITE_TO_PATCH - 1;
        }
    }
    return program->plans ? MGX_SUCCESS : mgx_fail(MGX_OUT_OF_MEMORY, "no memory for a program");
}

void mgx_free_plans(mgx_program *program)
{
    for (size_t number = 0; program->plans && number < mgx_this_content.plan_count; number++) {
        mgx_loaded *loaded = &program->plans[number];
        while (loaded->idle) {
            mgx_context *next = loaded->idle->next;
            free_context(loaded->idle);
            loaded->idle = next;
        }
        free(loaded->writes);
    }
    free(program->plans);
}

/* What a step has met. */
static mgx_status fault(const mgx_plan *plan, const int64_t *job)
{
    const mgx_check *check = &plan->checks[plan->first_check[job[JOB_FAULT] - 1] + job[JOB_FAULT_CHECK]];
    const char *number = strstr(check->what, "{index}"); /* in a text that is a whole message */
    if (number)
        return mgx_fail(MGX_INDEX_OUT_OF_RANGE, "%.*s%lld%s", (int)(number - check->what), check->what,
                        (long long)job[JOB_FAULT_INDEX], number + strlen("{index}"));
    return mgx_fail(MGX_INDEX_OUT_OF_RANGE, "%s: index %lld is out of range for %s", check->who,
                    (long long)job[JOB_FAULT_INDEX], check->what);
}

static mgx_status run_steps(const mgx_plan *plan, mgx_context *own, int64_t steps)
{
    own->job[JOB_FAULT] = 0;
    const unsigned old = mgx_enter_arithmetic();
    if (plan->operation_count)
        MGX_EXECUTOR_DRIVE(own->job, 0, (int64_t)plan->operation_count);
    else
        MGX_EXECUTOR_LEAD(own->job, 0, steps);
    mgx_leave_arithmetic(old);
    return own->job[JOB_FAULT] ? fault(plan, own->job) : MGX_SUCCESS;
}

mgx_status mgx_run_plan(mgx_program *program, size_t number, const mgx_inputs *inputs, mgx_result *results,
                        mgx_block **blocks)
{
    const mgx_plan *plan = &mgx_this_content.plans[number];
    mgx_context *own = take_context(program, number);
    if (!own)
        return MGX_OUT_OF_MEMORY;
    mgx_status status = MGX_SUCCESS;
    int64_t steps = (int64_t)plan->step_count;
    const int64_t *lens = NULL;
    if (plan->sizes.symbol_count) {
        status = mgx_settle(plan, &own->bound, inputs);
        steps = mgx_bound_steps(&own->bound);
        lens = mgx_bound_lens(&own->bound);
    }
    if (!status)
        status = mgx_bind(plan, inputs, results, blocks, own->bases, lens);
    if (!status)
        status = run_steps(plan, own, steps);
    give_context(&program->plans[number], own);
    return status;
}

mgx_status mgx_plan_lens(mgx_program *program, size_t number, const mgx_inputs *inputs, size_t *lens)
{
    const mgx_plan *plan = &mgx_this_content.plans[number];
    mgx_status status = MGX_SUCCESS;
    mgx_context *own = NULL;
    const int64_t *found = NULL;
    if (plan->sizes.symbol_count) {
        own = take_context(program, number);
        if (!own)
            return MGX_OUT_OF_MEMORY;
        status = mgx_settle(plan, &own->bound, inputs);
        found = mgx_bound_lens(&own->bound);
    }
    if (!status)
        status = mgx_check_lens(plan, inputs, found);
    for (size_t k = 0; found && k < plan->parameter_count; k++)
        found += plan->parameters[k].rank;
    for (size_t k = 0; !status && k < plan->output_count; k++)
        for (size_t axis = 0; axis < plan->outputs[k].rank; axis++)
            *lens++ = found ? (size_t)*found++ : plan->outputs[k].lens[axis];
    if (own)
        give_context(&program->plans[number], own);
    return status;
}
