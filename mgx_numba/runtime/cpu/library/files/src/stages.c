/* Runs of nodes: the choice of a plan by the lengths of the inputs, and stages whose lengths depend on data. */
#include <math.h>
#include <string.h>

#include "program.h"

/* Lengths that live as long as the run. */
static size_t *take_lens(size_t rank, mgx_block **blocks)
{
    size_t *lens = mgx_take_block(blocks, (rank + 1) * sizeof *lens);
    if (!lens)
        mgx_fail(MGX_OUT_OF_MEMORY, "run: no memory for lengths");
    return lens;
}

static mgx_status count_elements(const mgx_completed *one, mgx_result *results, mgx_block **blocks)
{
    mgx_tensor *tensor = &results[one->number].tensor;
    size_t *lens = take_lens(one->rank, blocks);
    if (!lens)
        return MGX_OUT_OF_MEMORY;
    for (size_t axis = 0; axis < one->rank; axis++)
        lens[axis] = (size_t)(one->lens[axis] < 0 ? *(const int64_t *)results[one->other].tensor.data : one->lens[axis]);
    tensor->rank = one->rank;
    tensor->lens = lens;
    return MGX_SUCCESS;
}

static int64_t integer(const mgx_tensor *tensor)
{
    return tensor->type == MGX_INT64   ? *(const int64_t *)tensor->data
           : tensor->type == MGX_INT32 ? *(const int32_t *)tensor->data
                                       : *(const int16_t *)tensor->data;
}

static double number(const mgx_tensor *tensor)
{
    return tensor->type == MGX_DOUBLE ? *(const double *)tensor->data : (double)*(const float *)tensor->data;
}

static mgx_status space_integers(int64_t first, int64_t last, int64_t step, mgx_result *result, mgx_block **blocks)
{
    const __int128 length = (__int128)last - first, up = length / step + (length % step && (length < 0) == (step < 0));
    const int64_t lens[] = {up < 0 ? 0 : up > INT64_MAX ? INT64_MAX : (int64_t)up};
    const mgx_type type = result->tensor.type;
    const mgx_status status = mgx_make_tensor((mgx_tensor){NULL, type, 1, NULL, NULL}, lens, result, blocks);
    for (int64_t k = 0; !status && k < lens[0]; k++) {
        const int64_t value = (int64_t)((uint64_t)first + (uint64_t)k * (uint64_t)step);
        if (type == MGX_INT64)
            ((int64_t *)result->tensor.data)[k] = value;
        else if (type == MGX_INT32)
            ((int32_t *)result->tensor.data)[k] = (int32_t)value;
        else
            ((int16_t *)result->tensor.data)[k] = (int16_t)value;
    }
    return status;
}

static mgx_status space_floats(double first, double last, double step, mgx_result *result, mgx_block **blocks)
{
    const double count = ceil((last - first) / step);
    if (!isfinite(count))
        return mgx_fail(MGX_BAD_PARAM, "dynamic_range: no finite count from %g to %g in steps of %g", first, last, step);
    const int64_t lens[] = {count < 0 ? 0 : count < 0x1p62 ? (int64_t)count : INT64_MAX};
    const mgx_type type = result->tensor.type;
    const mgx_status status = mgx_make_tensor((mgx_tensor){NULL, type, 1, NULL, NULL}, lens, result, blocks);
    for (int64_t k = 0; !status && k < lens[0]; k++) {
        const volatile double product = (double)k * step; /* rounded: no fused multiply-add */
        if (type == MGX_DOUBLE)
            ((double *)result->tensor.data)[k] = first + product;
        else
            ((float *)result->tensor.data)[k] = (float)(first + product);
    }
    return status;
}

static mgx_status complete(const mgx_completed *one, mgx_result *results, mgx_block **blocks)
{
    mgx_result *result = &results[one->number];
    const mgx_tensor *first = &result->tensor, *last = &results[one->other].tensor, *step = &results[one->delta].tensor;
    if (one->kind == MGX_COUNTED)
        return count_elements(one, results, blocks);
    const int exact = first->type != MGX_DOUBLE && first->type != MGX_FLOAT;
    if (exact ? integer(step) == 0 : number(step) == 0)
        return mgx_fail(MGX_BAD_PARAM, "dynamic_range: delta is 0");
    if (exact)
        return space_integers(integer(first), integer(last), integer(step), result, blocks);
    return space_floats(number(first), number(last), number(step), result, blocks);
}

/* A tensor without elements whose lengths tell a size, as `size_array` of the compiler makes it. */
static mgx_status pass_size(const mgx_tensor *size, mgx_tensor *passed, mgx_block **blocks)
{
    const int64_t largest = (int64_t)1 << 40;
    int64_t value = *(const int64_t *)size->data;
    value = value > largest ? largest : value < -largest ? -largest : value;
    size_t *lens = take_lens(3, blocks);
    if (!lens)
        return MGX_OUT_OF_MEMORY;
    lens[0] = value > 0 ? (size_t)value + 1 : 1;
    lens[1] = value < 0 ? (size_t)-value : 0;
    lens[2] = 0;
    *passed = (mgx_tensor){NULL, MGX_BOOL, 3, lens, lens};
    return MGX_SUCCESS;
}

static mgx_status pass(const mgx_passed *one, const mgx_inputs *inputs, const mgx_result *head, mgx_tensor *passed,
                       mgx_block **blocks)
{
    mgx_status status = MGX_SUCCESS;
    if (one->kind == MGX_OF_RESULT) {
        *passed = head[one->number].tensor;
    } else if (one->kind == MGX_OF_SIZE) {
        status = pass_size(&head[one->number].tensor, passed, blocks);
    } else {
        const mgx_tensor *source = mgx_find(one->source, inputs, 0);
        if (!source)
            return mgx_fail(MGX_BAD_PARAM, "Parameter not found: %s", one->source);
        *passed = *source;
        if (one->kind == MGX_OF_LENGTH) {
            size_t *lens = take_lens(2, blocks);
            if (!lens)
                return MGX_OUT_OF_MEMORY;
            lens[0] = source->lens[one->number];
            lens[1] = 0;
            *passed = (mgx_tensor){NULL, MGX_BOOL, 2, lens, lens};
        }
    }
    passed->name = one->name;
    return status;
}

static mgx_status run_stages(mgx_program *program, const mgx_node *node, const mgx_inputs *inputs, mgx_result *results,
                             mgx_block **blocks)
{
    const mgx_node *head = &mgx_this_content.nodes[node->members[0]], *tail = &mgx_this_content.nodes[node->members[1]];
    mgx_result first[head->output_count + 1], second[tail->output_count + 1];
    mgx_result *const stages[] = {first, second};
    mgx_tensor passed[node->passed_count + 1];
    memset(first, 0, sizeof first);
    memset(second, 0, sizeof second);
    for (size_t k = 0; k < node->output_count; k++) {
        const size_t stage = node->results[2 * k], number = node->results[2 * k + 1];
        int whole = !stages[stage][number].given;
        for (size_t c = 0; c < node->completed_count && !stage; c++)
            whole = whole && node->completed[c].number != number;
        if (whole) {
            stages[stage][number].given = results[k].given;
            stages[stage][number].name = results[k].name;
        }
    }
    mgx_status status = mgx_run_node(program, head, inputs, first, blocks);
    for (size_t k = 0; k < node->completed_count && !status; k++)
        status = complete(&node->completed[k], first, blocks);
    for (size_t k = 0; k < node->passed_count && !status; k++)
        status = pass(&node->passed[k], inputs, first, &passed[k], blocks);
    if (!status && tail->output_count)
        status = mgx_run_node(program, tail, &(mgx_inputs){passed, node->passed_count}, second, blocks);
    for (size_t k = 0; k < node->output_count && !status; k++) {
        const mgx_result *made = &stages[node->results[2 * k]][node->results[2 * k + 1]];
        results[k].tensor = made->tensor;
        results[k].block = made->block;
        if (results[k].given && results[k].given != made->given)
            status = mgx_fill_given(&results[k]);
    }
    return status;
}

mgx_status mgx_run_node(mgx_program *program, const mgx_node *node, const mgx_inputs *inputs, mgx_result *results,
                        mgx_block **blocks)
{
    if (node->kind == MGX_PLAN)
        return mgx_run_plan(program, node->members[0], inputs, results, blocks);
    if (node->kind == MGX_STAGES)
        return run_stages(program, node, inputs, results, blocks);
    for (size_t k = 0; k < node->member_count; k++) {
        const mgx_node *member = &mgx_this_content.nodes[node->members[k]];
        const mgx_status status = mgx_run_node(program, member, inputs, results, blocks);
        if (status != MGX_UNSERVED)
            return status;
    }
    return mgx_fail(MGX_UNSERVED, "run: the library does not serve these lengths of the inputs");
}

mgx_status mgx_node_lens(mgx_program *program, const mgx_node *node, const mgx_inputs *inputs, size_t *lens)
{
    if (node->kind == MGX_PLAN)
        return mgx_plan_lens(program, node->members[0], inputs, lens);
    if (node->kind == MGX_STAGES)
        return mgx_fail(MGX_NEEDS_VALUES, "output_lens: lengths depend on what the inputs hold: `compute` tells them");
    for (size_t k = 0; k < node->member_count; k++) {
        const mgx_status status = mgx_node_lens(program, &mgx_this_content.nodes[node->members[k]], inputs, lens);
        if (status != MGX_UNSERVED)
            return status;
    }
    return mgx_fail(MGX_UNSERVED, "run: the library does not serve these lengths of the inputs");
}
