/* The tensors of a run: whether they are what the library declares. */
#include <stdio.h>
#include <string.h>

#include "plan.h"
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

/* What is wrong with the tensor of a parameter or an output, as `kind` says. */
static mgx_status reject(const char *kind, const mgx_tensor *given, const mgx_tensor *wanted, const int64_t *lens)
{
    char what[SHAPE_BYTES], found[SHAPE_BYTES], expected[SHAPE_BYTES];
    snprintf(what, sizeof what, "%s %s", kind, wanted->name);
    if (given->rank && !given->lens)
        return mgx_fail(MGX_BAD_PARAM, "%s: lens is NULL", what);
    if (!fits(given, wanted, lens)) {
        write_shape(given, NULL, found);
        write_shape(wanted, lens, expected);
        return mgx_fail(MGX_BAD_PARAM, "%s has the shape %s, expected %s", what, found, expected);
    }
    if (!given->data)
        return mgx_fail(MGX_BAD_PARAM, "%s: data is NULL", what);
    return mgx_fail(MGX_BAD_PARAM, "%s: data is at %p, which is no multiple of the %zu bytes of an element", what,
                    given->data, mgx_type_size(given->type));
}

static mgx_status check(const char *kind, const mgx_tensor *given, const mgx_tensor *wanted, const int64_t *lens)
{
    const int sound = (!given->rank || given->lens) && fits(given, wanted, lens) && (given->data || !elements(given))
                      && (uintptr_t)given->data % mgx_type_size(wanted->type) == 0;
    return sound ? MGX_SUCCESS : reject(kind, given, wanted, lens);
}

/* The input of this name, which most callers have at the place of the parameter. */
static const mgx_tensor *find(const char *name, const mgx_tensor *inputs, size_t count, size_t likely)
{
    if (likely < count && inputs[likely].name && !strcmp(inputs[likely].name, name))
        return &inputs[likely];
    for (size_t k = 0; k < count; k++)
        if (inputs[k].name && !strcmp(inputs[k].name, name))
            return &inputs[k];
    return NULL;
}

static mgx_status missing(const char *name, const mgx_tensor *inputs, size_t count)
{
    char given[512] = "";
    int used = 0;
    for (size_t k = 0; k < count && used < (int)sizeof given; k++)
        used += snprintf(given + used, sizeof given - (size_t)used, k ? ", %s" : "%s",
                         inputs[k].name ? inputs[k].name : "NULL");
    return mgx_fail(MGX_BAD_PARAM, "Parameter not found: %s (given: %s)", name, used ? given : "none");
}

static int overlap(const mgx_tensor *a, const mgx_tensor *b)
{
    const uintptr_t first = (uintptr_t)a->data, second = (uintptr_t)b->data;
    return first < second + bytes(b) && second < first + bytes(a);
}

static mgx_status check_apart(const mgx_tensor *outputs, size_t output, const mgx_tensor *inputs, size_t input_count)
{
    const char *name = mgx_these_outputs[output].name;
    for (size_t k = 0; k < output; k++)
        if (overlap(&outputs[output], &outputs[k]))
            return mgx_fail(MGX_BAD_PARAM, "the outputs %s and %s overlap", mgx_these_outputs[k].name, name);
    for (size_t k = 0; k < mgx_this_library.parameter_count; k++) {
        const mgx_tensor *input = find(mgx_these_parameters[k].name, inputs, input_count, k);
        if (overlap(&outputs[output], input))
            return mgx_fail(MGX_BAD_PARAM, "output %s overlaps the parameter %s", name, input->name);
    }
    return MGX_SUCCESS;
}

mgx_status mgx_read_lens(const mgx_tensor *inputs, size_t input_count, const int64_t *sources, size_t count,
                         int64_t *values)
{
    for (size_t k = 0; k < count; k++) {
        const size_t parameter = (size_t)sources[2 * k], axis = (size_t)sources[2 * k + 1];
        const mgx_tensor *wanted = &mgx_these_parameters[parameter];
        const mgx_tensor *given = find(wanted->name, inputs, input_count, parameter);
        if (!given)
            return missing(wanted->name, inputs, input_count);
        if (given->rank != wanted->rank || !given->lens)
            return reject("parameter", given, wanted, NULL);
        values[k] = given->lens[axis] > INT64_MAX ? INT64_MAX : (int64_t)given->lens[axis];
    }
    return MGX_SUCCESS;
}

mgx_status mgx_bind(const mgx_tensor *inputs, size_t input_count, const mgx_tensor *outputs, size_t output_count,
                    int64_t *bases, const int64_t *lens)
{
    mgx_status status = MGX_SUCCESS;
    for (size_t k = 0; k < mgx_this_library.parameter_count && !status; k++) {
        const mgx_tensor *wanted = &mgx_these_parameters[k];
        const mgx_tensor *given = find(wanted->name, inputs, input_count, k);
        if (!given)
            return missing(wanted->name, inputs, input_count);
        status = check("parameter", given, wanted, lens);
        lens += lens ? wanted->rank : 0;
        *bases++ = (int64_t)(intptr_t)given->data;
    }
    if (!status && output_count != mgx_this_library.output_count)
        return mgx_fail(MGX_BAD_PARAM, "%zu outputs are given, the program has %zu", output_count,
                        mgx_this_library.output_count);
    for (size_t k = 0; k < mgx_this_library.output_count && !status; k++) {
        status = check("output", &outputs[k], &mgx_these_outputs[k], lens);
        lens += lens ? mgx_these_outputs[k].rank : 0;
        if (!status)
            status = check_apart(outputs, k, inputs, input_count);
        *bases++ = (int64_t)(intptr_t)outputs[k].data;
    }
    return status;
}
