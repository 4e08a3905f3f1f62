/* MIGraphX's C interface, in the library migraphx_c; docs/cpp.md says how to build it.
 *
 * Handles that a function puts into a parameter of type `migraphx_..._t*` are the caller's to destroy, but for modules and
 * contexts, which are the program's. Handles of type `const_migraphx_..._t*` belong to the handle that they are from.
 * A function that fails prints a message, and keeps it for `migraphx_last_error`.
 */
#ifndef MIGRAPHX_MIGRAPHX_H
#define MIGRAPHX_MIGRAPHX_H

#include <stdbool.h>

#include "types.h"

#define MIGRAPHX_C_EXPORT __attribute__((visibility("default")))

#ifdef __cplusplus
extern "C" {
#endif

/* Handles with functions `migraphx_NAME_destroy` and `migraphx_NAME_assign_to`. */
#define MIGRAPHX_HANDLES(m) \
    m(optimals) m(dynamic_dimension) m(dynamic_dimensions) m(shape) m(argument) m(target) m(program_parameter_shapes) \
    m(program_parameters) m(arguments) m(shapes) m(instruction) m(instructions) m(modules) m(trace_info) m(program) \
    m(operation) m(onnx_options) m(file_options) m(compile_options) m(tf_options) m(quantize_op_names) \
    m(quantize_int8_options) m(quantize_fp8_options) m(experimental_custom_op)

#define MGX_HANDLE(name) \
    typedef struct migraphx_##name* migraphx_##name##_t; \
    typedef const struct migraphx_##name* const_migraphx_##name##_t;
MIGRAPHX_HANDLES(MGX_HANDLE)
MGX_HANDLE(module)
MGX_HANDLE(context)
#undef MGX_HANDLE

typedef migraphx_status (*migraphx_trace_callback_t)(migraphx_trace_info_t info, void* data);

/* Functions of a custom operator: they assign to `out`; a failure's message is written to `message`. */
typedef migraphx_status (*migraphx_experimental_custom_op_compute)(migraphx_argument_t out, void* object, char* message,
                                                                   size_t message_size, migraphx_context_t context,
                                                                   migraphx_shape_t output, migraphx_arguments_t inputs);
typedef migraphx_status (*migraphx_experimental_custom_op_compute_shape)(migraphx_shape_t out, void* object, char* message,
                                                                         size_t message_size, migraphx_shapes_t inputs);
typedef migraphx_status (*migraphx_experimental_custom_op_output_alias)(size_t* out, size_t* out_size, void* object,
                                                                        char* message, size_t message_size,
                                                                        migraphx_shapes_t inputs);
typedef migraphx_status (*migraphx_experimental_custom_op_runs_on_offload_target)(bool* out, void* object, char* message,
                                                                                  size_t message_size);
typedef migraphx_status (*migraphx_experimental_custom_op_copy)(void** out, void* input);
typedef migraphx_status (*migraphx_experimental_custom_op_delete)(void* input);

#define MGX_HANDLE(name) \
    MIGRAPHX_C_EXPORT migraphx_status migraphx_##name##_destroy(migraphx_##name##_t handle); \
    MIGRAPHX_C_EXPORT migraphx_status migraphx_##name##_assign_to(migraphx_##name##_t output, \
                                                                  const_migraphx_##name##_t input);
MIGRAPHX_HANDLES(MGX_HANDLE)
#undef MGX_HANDLE

#define MIGRAPHX_FUNCTION(name, parameters, ...) MIGRAPHX_C_EXPORT migraphx_status migraphx_##name parameters;
#define MIGRAPHX_PRINTF_FUNCTION MIGRAPHX_FUNCTION
#include "functions.h"
#undef MIGRAPHX_PRINTF_FUNCTION
#undef MIGRAPHX_FUNCTION

/* This library's own: the message of this thread's last call that failed, until its next call that fails. */
MIGRAPHX_C_EXPORT const char* migraphx_last_error(void);

#ifdef __cplusplus
}
#endif

#endif
