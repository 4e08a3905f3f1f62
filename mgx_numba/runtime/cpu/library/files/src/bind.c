/* The tensors of a run: whether they are what the library declares, and memory for those that a run makes. */
#include <stdio.h>
#include <string.h>

#include "program.h"

#define SHAPE_BYTES 192 /* of a shape in a message; longer ones are cut */

static const char *const type_names[] = {
    "bool",  "half",   "float",  "double", "uint8",      "int8",      "uint16",   "int16", "int32",
    "int64", "uint32", "uint64", "fp8e4m3fnuz", "fp8e4m3fn", "fp8e5m2", "bf16", "fp8e5m2fnuz",
};

static size_t elements(const mgx_tensor *tensor)
{
    size_t count = 1;
    for (size_t axis = 0; axis < tensor->rank; axis++)
        count *= tensor->lens[axis];
    return count;
}

static size_t bytes(const mgx_tensor *tensor)
{
    return elements(tensor) * mgx_type_size(tensor->type);
}

/* `lens` are the tensor's, NULL for those that it has itself; of a declared one they may be open. */
static void write_shape(const mgx_tensor *tensor, const int64_t *lens, char *text)
{
    const size_t known = sizeof type_names / sizeof *type_names;
    const char *type = (unsigned)tensor->type < known ? type_names[tensor->type] : "unknown type";
    int used = snprintf(text, SHAPE_BYTES, "%s {", type);
    for (size_t axis = 0; axis < tensor->rank && used < SHAPE_BYTES; axis++) {
        const size_t length = lens ? (size_t)lens[axis] : tensor->lens[axis];
        const char *form = length == MGX_OPEN_LENGTH ? ", ?" : ", %zu";
        used += snprintf(text + used, SHAPE_BYTES - (size_t)used, axis ? form : form + 2, length);
    }
    if (used < SHAPE_BYTES)
        snprintf(text + used, SHAPE_BYTES - (size_t)used, "}");
}

static int fits(const mgx_tensor *given, const mgx_tensor *wanted, const int64_t *lens)
{
    if (given->type != wanted->type)
        return 0;
    if (!wanted->rank) /* one element, of any rank */
        return elements(given) == 1;
    if (given->rank != wanted->rank)
        return 0;
    for (size_t axis = 0; axis < wanted->rank; axis++)
        if (given->lens[axis] != (lens ? (size_t)lens[axis] : wanted->lens[axis]))
            return 0;
    return 1;
}

/* What is wrong with the tensor of a parameter or an output, as `kind` says; `unfit` is the status for other lengths. */
static mgx_status reject(const char *kind, const mgx_tensor *given, const mgx_tensor *wanted, const int64_t *lens,
                         mgx_status unfit)
{
    char what[SHAPE_BYTES], found[SHAPE_BYTES], expected[SHAPE_BYTES];
    snprintf(what, sizeof what, "%s %s", kind, wanted->name);
    if (given->rank && !given->lens)
        return mgx_fail(MGX_BAD_PARAM, "%s: lens is NULL", what);
    if (!fits(given, wanted, lens)) {
        write_shape(given, NULL, found);
        write_shape(wanted, lens, expected);
        return mgx_fail(given->type == wanted->type ? unfit : MGX_BAD_PARAM, "%s has the shape %s, expected %s", what,
                        found, expected);
    }
    if (!given->data)
        return mgx_fail(MGX_BAD_PARAM, "%s: data is NULL", what);
    return mgx_fail(MGX_BAD_PARAM, "%s: data is at %p, which is no multiple of the %zu bytes of an element", what,
                    given->data, mgx_type_size(given->type));
}

static mgx_status check(const char *kind, const mgx_tensor *given, const mgx_tensor *wanted, const int64_t *lens,
                        mgx_status unfit)
{
    const int sound = (!given->rank || given->lens) && fits(given, wanted, lens) && (given->data || !elements(given))
                      && (uintptr_t)given->data % mgx_type_size(wanted->type) == 0;
    return sound ? MGX_SUCCESS : reject(kind, given, wanted, lens, unfit);
}

/* The input of this name, which most callers have at the place of the parameter; NULL if there is none. */
const mgx_tensor *mgx_find(const char *name, const mgx_inputs *inputs, size_t likely)
{
    const mgx_tensor *given = inputs->tensors;
    if (likely < inputs->count && given[likely].name && !strcmp(given[likely].name, name))
        return &given[likely];
    for (size_t k = 0; k < inputs->count; k++)
        if (given[k].name && !strcmp(given[k].name, name))
            return &given[k];
    return NULL;
}

static mgx_status missing(const char *name, const mgx_inputs *inputs)
{
    char given[512] = "";
    int used = 0;
    for (size_t k = 0; k < inputs->count && used < (int)sizeof given; k++)
        used += snprintf(given + used, sizeof given - (size_t)used, k ? ", %s" : "%s",
                         inputs->tensors[k].name ? inputs->tensors[k].name : "NULL");
    return mgx_fail(MGX_BAD_PARAM, "Parameter not found: %s (given: %s)", name, used ? given : "none");
}

static int overlap(const mgx_tensor *a, const mgx_tensor *b)
{
    const uintptr_t first = (uintptr_t)a->data, second = (uintptr_t)b->data;
    if ((a->rank && !a->lens) || (b->rank && !b->lens)) /* refused later */
        return 0;
    return first < second + bytes(b) && second < first + bytes(a);
}

mgx_status mgx_check_apart(const mgx_inputs *inputs, const mgx_tensor *outputs)
{
    for (size_t output = 0; output < mgx_this_library.output_count; output++) {
        const char *name = mgx_these_outputs[output].name;
        for (size_t k = 0; k < output; k++)
            if (overlap(&outputs[output], &outputs[k]))
                return mgx_fail(MGX_BAD_PARAM, "the outputs %s and %s overlap", mgx_these_outputs[k].name, name);
        for (size_t k = 0; k < mgx_this_library.parameter_count; k++) {
            const mgx_tensor *input = mgx_find(mgx_these_parameters[k].name, inputs, k);
            if (input && overlap(&outputs[output], input))
                return mgx_fail(MGX_BAD_PARAM, "output %s overlaps the parameter %s", name, input->name);
        }
    }
    return MGX_SUCCESS;
}

mgx_status mgx_make_tensor(mgx_tensor declared, const int64_t *lens, mgx_result *result, mgx_block **blocks)
{
    const size_t room = (declared.rank * sizeof(size_t) + MGX_ALIGNMENT - 1) / MGX_ALIGNMENT * MGX_ALIGNMENT;
    size_t size = mgx_type_size(declared.type), own[declared.rank + 1];
    for (size_t axis = 0; axis < declared.rank; axis++) {
        own[axis] = lens ? (size_t)lens[axis] : declared.lens[axis];
        if (__builtin_mul_overflow(size, own[axis], &size))
            size = SIZE_MAX / 2;
    }
    size_t *memory = mgx_take_block(blocks, room + size);
    if (!memory)
        return mgx_fail(MGX_OUT_OF_MEMORY, "run: no memory for a result of %zu bytes", size);
    memcpy(memory, own, declared.rank * sizeof *memory);
    result->block = *blocks;
    result->tensor = (mgx_tensor){NULL, declared.type, declared.rank, memory, (unsigned char *)memory + room};
    return MGX_SUCCESS;
}

mgx_status mgx_fill_given(mgx_result *result)
{
    mgx_tensor wanted = result->tensor;
    wanted.name = result->name;
    const mgx_status status = check("output", result->given, &wanted, NULL, MGX_BAD_PARAM);
    if (!status && bytes(&wanted))
        memcpy(result->given->data, wanted.data, bytes(&wanted));
    return status;
}

mgx_status mgx_read_lens(const mgx_plan *plan, const mgx_inputs *inputs, int64_t *values)
{
    const int64_t *sources = plan->sizes.sources;
    for (size_t k = 0; k < plan->sizes.symbol_count; k++) {
        const size_t parameter = (size_t)sources[2 * k], axis = (size_t)sources[2 * k + 1];
        const mgx_tensor *wanted = &plan->parameters[parameter];
        const mgx_tensor *given = mgx_find(wanted->name, inputs, parameter);
        if (!given)
            return missing(wanted->name, inputs);
        if (given->rank != wanted->rank || !given->lens)
            return reject("parameter", given, wanted, NULL, MGX_UNSERVED);
        values[k] = given->lens[axis] > INT64_MAX ? INT64_MAX : (int64_t)given->lens[axis];
    }
    return MGX_SUCCESS;
}

mgx_status mgx_check_lens(const mgx_plan *plan, const mgx_inputs *inputs, const int64_t *lens)
{
    for (size_t k = 0; k < plan->parameter_count; k++) {
        const mgx_tensor *wanted = &plan->parameters[k];
        const mgx_tensor *given = mgx_find(wanted->name, inputs, k);
        if (!given)
            return missing(wanted->name, inputs);
        if ((given->rank && !given->lens) || !fits(given, wanted, lens))
            return reject("parameter", given, wanted, lens, MGX_UNSERVED);
        lens += lens ? wanted->rank : 0;
    }
    return MGX_SUCCESS;
}

mgx_status mgx_bind(const mgx_plan *plan, const mgx_inputs *inputs, mgx_result *results, mgx_block **blocks,
                    int64_t *bases, const int64_t *lens)
{
    mgx_status status = MGX_SUCCESS;
    for (size_t k = 0; k < plan->parameter_count && !status; k++) {
        const mgx_tensor *wanted = &plan->parameters[k];
        const mgx_tensor *given = mgx_find(wanted->name, inputs, k);
        if (!given)
            return missing(wanted->name, inputs);
        status = check("parameter", given, wanted, lens, MGX_UNSERVED);
        lens += lens ? wanted->rank : 0;
        *bases++ = (int64_t)(intptr_t)given->data;
    }
    for (size_t k = 0; k < plan->output_count && !status; k++) {
        mgx_tensor wanted = plan->outputs[k];
        mgx_result *result = &results[k];
        if (result->given) {
            wanted.name = result->name;
            status = check("output", result->given, &wanted, lens, MGX_BAD_PARAM);
            result->tensor = *result->given;
            result->tensor.rank = wanted.rank;
        } else {
            status = mgx_make_tensor(wanted, lens, result, blocks);
        }
        lens += lens ? wanted.rank : 0;
        *bases++ = (int64_t)(intptr_t)result->tensor.data;
    }
    return status;
}
