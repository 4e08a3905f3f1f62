/* A C program of MIGraphX: `c_program FOLDER`, which has net.onnx. It prints a line for each refusal. */
#include "c_checks.h"

/* Run with a generated input, and write input and result. */
static void run(migraphx_program_t program, const char* title)
{
    migraphx_program_parameter_shapes_t shapes;
    migraphx_program_parameters_t parameters;
    migraphx_arguments_t results;
    migraphx_argument_t input, same;
    const_migraphx_argument_t result;
    const_migraphx_shape_t shape, result_shape;
    const char* name;
    char file[100];
    size_t count;
    bool equal;
    NEED(migraphx_program_get_parameter_shapes(&shapes, program));
    NEED(migraphx_program_parameter_shapes_size(&count, shapes));
    require(count == 1, "one parameter");
    NEED(migraphx_program_parameter_shapes_names(&name, shapes));
    NEED(migraphx_program_parameter_shapes_get(&shape, shapes, name));
    NEED(migraphx_argument_generate(&input, shape, 3));
    NEED(migraphx_argument_save(input, in_folder("input.msgpack")));
    NEED(migraphx_argument_load(&same, in_folder("input.msgpack")));
    NEED(migraphx_argument_equal(&equal, input, same));
    require(equal, "an argument is saved and loaded");
    NEED(migraphx_program_parameters_create(&parameters));
    NEED(migraphx_program_parameters_add(parameters, name, input));
    NEED(migraphx_program_run(&results, program, parameters));
    NEED(migraphx_arguments_size(&count, results));
    require(count == 1, "one result");
    NEED(migraphx_arguments_get(&result, results, 0));
    NEED(migraphx_argument_shape(&result_shape, result));
    NEED(migraphx_shape_elements(&count, result_shape));
    require(count == 20, "its elements");
    snprintf(file, sizeof file, "%s.msgpack", title);
    NEED(migraphx_argument_save(result, in_folder(file)));
    REFUSED(migraphx_status_bad_param, migraphx_arguments_get(&result, results, 1));
    REFUSED(migraphx_status_bad_param, migraphx_program_parameter_shapes_get(&shape, shapes, "y"));
    NEED(migraphx_arguments_destroy(results));
    NEED(migraphx_program_parameters_destroy(parameters));
    NEED(migraphx_argument_destroy(same));
    NEED(migraphx_argument_destroy(input));
    NEED(migraphx_program_parameter_shapes_destroy(shapes));
}

static void parsed(void)
{
    migraphx_onnx_options_t reading;
    migraphx_compile_options_t compiling;
    migraphx_target_t target;
    migraphx_program_t program, again;
    size_t lengths[] = {4, 6};
    bool equal;
    NEED(migraphx_onnx_options_create(&reading));
    NEED(migraphx_onnx_options_set_input_parameter_shape(reading, "x", lengths, 2));
    NEED(migraphx_onnx_options_set_use_debug_symbols(reading, true));
    NEED(migraphx_parse_onnx(&program, in_folder("net.onnx"), reading));
    NEED(migraphx_target_create(&target, "cpu"));
    NEED(migraphx_compile_options_create(&compiling));
    NEED(migraphx_compile_options_set_fast_math(compiling, false));
    NEED(migraphx_program_compile(program, target, compiling));
    run(program, "float");
    NEED(migraphx_save(program, in_folder("net.mxr"), NULL));
    NEED(migraphx_load(&again, in_folder("net.mxr"), NULL));
    NEED(migraphx_program_equal(&equal, program, again));
    require(equal, "a program is saved and loaded");
    run(again, "loaded");
    NEED(migraphx_program_destroy(again));
    NEED(migraphx_parse_onnx(&again, in_folder("net.onnx"), reading));
    NEED(migraphx_quantize_fp16(again));
    NEED(migraphx_program_compile(again, target, NULL));
    run(again, "half");
    NEED(migraphx_program_destroy(again));
    REFUSED(migraphx_status_unknown_error, migraphx_parse_onnx(&again, in_folder("none.onnx"), reading));
    REFUSED(migraphx_status_unknown_error, migraphx_parse_onnx_buffer(&again, "\010\007", 2, NULL));
    REFUSED(migraphx_status_bad_param, migraphx_parse_onnx_buffer(&again, NULL, 7, NULL));
    REFUSED(migraphx_status_bad_param, migraphx_program_compile(NULL, target, NULL));
    REFUSED(migraphx_status_bad_param, migraphx_program_run(NULL, program, NULL));
    REFUSED(migraphx_status_unknown_target, migraphx_target_create(&target, "fpga"));
    NEED(migraphx_compile_options_destroy(compiling));
    NEED(migraphx_onnx_options_destroy(reading));
    NEED(migraphx_target_destroy(target));
    NEED(migraphx_program_destroy(program));
}

/* A custom operator: out = factor * x. */
static migraphx_status copied(void** out, void* input)
{
    *out = malloc(sizeof(float));
    memcpy(*out, input, sizeof(float));
    return migraphx_status_success;
}

static migraphx_status destroyed(void* input)
{
    free(input);
    return migraphx_status_success;
}

static migraphx_status same_shape(migraphx_shape_t out, void* object, char* message, size_t size,
                                  migraphx_shapes_t inputs)
{
    const_migraphx_shape_t first;
    size_t count;
    (void)object;
    migraphx_shapes_size(&count, inputs);
    if(count != 1) {
        snprintf(message, size, "one input is needed, got %d", (int)count);
        return migraphx_status_bad_param;
    }
    migraphx_shapes_get(&first, inputs, 0);
    return migraphx_shape_assign_to(out, first);
}

static migraphx_status scaled(migraphx_argument_t out, void* object, char* message, size_t size,
                              migraphx_context_t context, migraphx_shape_t output, migraphx_arguments_t inputs)
{
    const_migraphx_argument_t input;
    migraphx_argument_t result;
    char *from, *to;
    size_t count, k;
    (void)message, (void)size;
    NEED(migraphx_context_finish(context));
    NEED(migraphx_arguments_get(&input, inputs, 0));
    NEED(migraphx_argument_create_empty(&result, output));
    NEED(migraphx_shape_elements(&count, output));
    NEED(migraphx_argument_buffer(&from, input));
    NEED(migraphx_argument_buffer(&to, result));
    for(k = 0; k < count; k++)
        ((float*)to)[k] = *(float*)object * ((float*)from)[k];
    NEED(migraphx_argument_assign_to(out, result));
    return migraphx_argument_destroy(result);
}

static migraphx_status count_steps(migraphx_trace_info_t info, void* data)
{
    const char* name;
    const_migraphx_argument_t result;
    char* values;
    size_t index;
    NEED(migraphx_trace_info_get_index(&index, info));
    NEED(migraphx_trace_info_get_name(&name, info));
    NEED(migraphx_trace_info_get_result(&result, info));
    if(strstr(name, "scaled") != NULL) {
        NEED(migraphx_argument_buffer(&values, result));
        *(float*)data = ((float*)values)[1];
    }
    return migraphx_status_success;
}

static migraphx_status stop(migraphx_trace_info_t info, void* data)
{
    (void)info, (void)data;
    return migraphx_status_unknown_error;
}

static void built(void)
{
    migraphx_experimental_custom_op_t custom;
    migraphx_program_t program;
    migraphx_module_t main_module;
    migraphx_operation_t operation, leaky, bad;
    migraphx_shape_t shape, wrong;
    migraphx_instruction_t x, y, z, out;
    const_migraphx_instruction_t list[2];
    migraphx_instructions_t arguments, both;
    migraphx_program_parameters_t parameters;
    migraphx_argument_t input;
    migraphx_target_t target;
    migraphx_arguments_t results;
    const_migraphx_argument_t result;
    size_t lengths[] = {2, 2}, empty[] = {0}, place;
    float factor = 3, values[] = {1, -2, 3, 4}, seen = 0;
    char name[20], *data;
    NEED(migraphx_experimental_custom_op_create(&custom, &factor, copied, destroyed, "float", "scaled"));
    REFUSED(migraphx_status_bad_param, migraphx_experimental_custom_op_register(custom));
    NEED(migraphx_experimental_custom_op_set_compute_shape(custom, same_shape));
    NEED(migraphx_experimental_custom_op_set_compute(custom, scaled));
    NEED(migraphx_experimental_custom_op_register(custom));
    NEED(migraphx_experimental_custom_op_destroy(custom));
    NEED(migraphx_shape_create(&shape, migraphx_shape_float_type, lengths, 2));
    NEED(migraphx_shape_create(&wrong, migraphx_shape_float_type, empty, 1));
    REFUSED(migraphx_status_bad_param, migraphx_shape_index(&place, wrong, 0));
    NEED(migraphx_shape_destroy(wrong));
    NEED(migraphx_program_create(&program));
    NEED(migraphx_program_get_main_module(&main_module, program));
    NEED(migraphx_module_add_parameter(&x, main_module, "x", shape));
    NEED(migraphx_operation_create(&operation, "scaled", NULL));
    NEED(migraphx_operation_create(&leaky, "leaky_relu", "{alpha: %f}", 0.5));
    REFUSED(migraphx_status_unknown_error, migraphx_operation_create(&bad, "leaky_relu", "{beta: %d}", 2));
    REFUSED(migraphx_status_unknown_error, migraphx_operation_create(&bad, "nothing", NULL));
    NEED(migraphx_operation_name(name, sizeof name, leaky));
    require(strcmp(name, "leaky_relu") == 0, "an operation's name");
    REFUSED(migraphx_status_bad_param, migraphx_operation_name(name, 6, leaky));
    require(strcmp(name, "leaky") == 0, "as much of the name as there is room for");
    list[0] = list[1] = x;
    NEED(migraphx_instructions_create(&arguments, list, 1));
    NEED(migraphx_instructions_create(&both, list, 2));
    REFUSED(migraphx_status_unknown_error, migraphx_module_add_instruction(&y, main_module, operation, both));
    REFUSED(migraphx_status_bad_param, migraphx_module_add_instruction(NULL, main_module, leaky, arguments));
    NEED(migraphx_module_add_instruction(&y, main_module, leaky, arguments));
    NEED(migraphx_instructions_destroy(arguments));
    list[0] = y;
    NEED(migraphx_instructions_create(&arguments, list, 1));
    NEED(migraphx_module_add_instruction(&z, main_module, operation, arguments));
    NEED(migraphx_instructions_destroy(arguments));
    list[0] = z;
    NEED(migraphx_instructions_create(&arguments, list, 1));
    NEED(migraphx_module_add_return(&out, main_module, arguments));
    NEED(migraphx_target_create(&target, "cpu"));
    NEED(migraphx_program_compile(program, target, NULL));
    NEED(migraphx_program_parameters_create(&parameters));
    REFUSED(migraphx_status_unknown_error, migraphx_program_run(&results, program, parameters));
    NEED(migraphx_argument_create(&input, shape, values));
    NEED(migraphx_program_parameters_add(parameters, "x", input));
    NEED(migraphx_program_run_trace(&results, program, parameters, count_steps, &seen));
    NEED(migraphx_arguments_get(&result, results, 0));
    NEED(migraphx_argument_buffer(&data, result));
    require(((float*)data)[1] == -3 && ((float*)data)[3] == 12 && seen == -3, "a custom operator, traced");
    REFUSED(migraphx_status_bad_param, migraphx_program_run_trace(&results, program, parameters, NULL, NULL));
    REFUSED(migraphx_status_unknown_error, migraphx_program_run_trace(&results, program, parameters, stop, NULL));
    NEED(migraphx_arguments_destroy(results));
    NEED(migraphx_program_parameters_destroy(parameters));
    NEED(migraphx_argument_destroy(input));
    NEED(migraphx_target_destroy(target));
    NEED(migraphx_instructions_destroy(arguments));
    NEED(migraphx_instructions_destroy(both));
    NEED(migraphx_instruction_destroy(x));
    NEED(migraphx_instruction_destroy(y));
    NEED(migraphx_instruction_destroy(z));
    NEED(migraphx_instruction_destroy(out));
    NEED(migraphx_operation_destroy(operation));
    NEED(migraphx_operation_destroy(leaky));
    NEED(migraphx_shape_destroy(shape));
    NEED(migraphx_program_destroy(program));
}

/* A module that was made before its program: out = the literal. */
static migraphx_module_t branch(char* name, const_migraphx_shape_t shape, const float* values)
{
    migraphx_module_t made;
    migraphx_instruction_t literal, out;
    const_migraphx_instruction_t list[1];
    migraphx_instructions_t results;
    NEED(migraphx_module_create(&made, name));
    NEED(migraphx_module_add_literal(&literal, made, shape, (const char*)values));
    list[0] = literal;
    NEED(migraphx_instructions_create(&results, list, 1));
    NEED(migraphx_module_add_return(&out, made, results));
    NEED(migraphx_instructions_destroy(results));
    NEED(migraphx_instruction_destroy(literal));
    NEED(migraphx_instruction_destroy(out));
    return made;
}

static void branched(void)
{
    migraphx_program_t program;
    migraphx_module_t main_module, bodies[2];
    migraphx_modules_t both;
    migraphx_operation_t operation;
    migraphx_shape_t flag, shape;
    migraphx_instruction_t x, y, out;
    const_migraphx_instruction_t list[1];
    migraphx_instructions_t condition, results;
    migraphx_program_parameters_t parameters;
    migraphx_argument_t input;
    migraphx_target_t target;
    migraphx_arguments_t given;
    const_migraphx_argument_t result;
    size_t one[] = {1}, two[] = {2};
    const float of_then[] = {1, 2}, of_else[] = {3, 4};
    bool holds = false;
    char* data;
    NEED(migraphx_shape_create(&flag, migraphx_shape_bool_type, one, 1));
    NEED(migraphx_shape_create(&shape, migraphx_shape_float_type, two, 1));
    REFUSED(migraphx_status_bad_param, migraphx_shape_create(&shape, migraphx_shape_tuple_type, two, 1));
    bodies[0] = branch("then", shape, of_then);
    bodies[1] = branch("else", shape, of_else);
    NEED(migraphx_modules_create(&both, bodies, 2));
    NEED(migraphx_program_create(&program));
    NEED(migraphx_program_get_main_module(&main_module, program));
    NEED(migraphx_module_add_parameter(&x, main_module, "x", flag));
    list[0] = x;
    NEED(migraphx_instructions_create(&condition, list, 1));
    NEED(migraphx_operation_create(&operation, "if", NULL));
    REFUSED(migraphx_status_bad_param, migraphx_module_add_instruction(&y, bodies[0], operation, condition));
    NEED(migraphx_module_add_instruction_with_mod_args(&y, main_module, operation, condition, both));
    list[0] = y;
    NEED(migraphx_operation_destroy(operation));
    NEED(migraphx_operation_create(&operation, "get_tuple_elem", "{index: %d}", 0));
    NEED(migraphx_instructions_create(&results, list, 1));
    NEED(migraphx_instruction_destroy(y));
    NEED(migraphx_module_add_instruction(&y, main_module, operation, results));
    list[0] = y;
    NEED(migraphx_instructions_destroy(results));
    NEED(migraphx_instructions_create(&results, list, 1));
    NEED(migraphx_module_add_return(&out, main_module, results));
    NEED(migraphx_target_create(&target, "cpu"));
    NEED(migraphx_program_compile(program, target, NULL));
    NEED(migraphx_program_parameters_create(&parameters));
    NEED(migraphx_argument_create(&input, flag, &holds));
    NEED(migraphx_program_parameters_add(parameters, "x", input));
    NEED(migraphx_program_run(&given, program, parameters));
    NEED(migraphx_arguments_get(&result, given, 0));
    NEED(migraphx_argument_buffer(&data, result));
    require(((float*)data)[0] == 3 && ((float*)data)[1] == 4, "the branch of a module that was made alone");
    NEED(migraphx_arguments_destroy(given));
    NEED(migraphx_program_parameters_destroy(parameters));
    NEED(migraphx_argument_destroy(input));
    NEED(migraphx_target_destroy(target));
    NEED(migraphx_instructions_destroy(results));
    NEED(migraphx_instructions_destroy(condition));
    NEED(migraphx_instruction_destroy(x));
    NEED(migraphx_instruction_destroy(y));
    NEED(migraphx_instruction_destroy(out));
    NEED(migraphx_operation_destroy(operation));
    NEED(migraphx_modules_destroy(both));
    NEED(migraphx_shape_destroy(flag));
    NEED(migraphx_shape_destroy(shape));
    NEED(migraphx_program_destroy(program));
}

/* Without the compiler: a library that was exported. */
static void opened(const char* file)
{
    migraphx_program_t program;
    NEED(migraphx_load(&program, file, NULL));
    run(program, "library");
    REFUSED(migraphx_status_bad_param, migraphx_quantize_fp16(program));
    NEED(migraphx_program_destroy(program));
}

int main(int argc, char** argv)
{
    snprintf(folder, sizeof folder, "%s", argv[1]);
    if(argc == 3) {
        opened(argv[2]);
    } else {
        parsed();
        built();
        branched();
    }
    printf("all hold\n");
    return 0;
}
