/* The functions of MIGraphX's C interface that c_program.c does not call: `c_surface FOLDER`, which has net.onnx,
 * outside.onnx with its weights in the folder `weights`, loop.onnx and graph.pb. */
#include "c_checks.h"

static const size_t LENGTHS[] = {4, 6};

static migraphx_shape_t floats(const size_t* lengths, size_t rank)
{
    migraphx_shape_t shape;
    size_t copied[4];
    memcpy(copied, lengths, rank * sizeof *lengths);
    NEED(migraphx_shape_create(&shape, migraphx_shape_float_type, copied, rank));
    return shape;
}

static void dimensions(void)
{
    size_t two[] = {2, 4}, size;
    migraphx_optimals_t optimals;
    migraphx_dynamic_dimension_t fixed, open, best;
    const_migraphx_dynamic_dimension_t list[2], first;
    migraphx_dynamic_dimensions_t both, again;
    migraphx_shape_t shape;
    bool holds;
    NEED(migraphx_optimals_create(&optimals, two, 2));
    NEED(migraphx_dynamic_dimension_create_min_max(&fixed, 6, 6));
    NEED(migraphx_dynamic_dimension_create_min_max(&open, 1, 4));
    NEED(migraphx_dynamic_dimension_create_min_max_optimals(&best, 1, 4, optimals));
    NEED(migraphx_dynamic_dimension_is_fixed(&holds, fixed));
    require(holds, "a fixed dimension");
    NEED(migraphx_dynamic_dimension_is_fixed(&holds, open));
    require(!holds, "an open dimension");
    NEED(migraphx_dynamic_dimension_equal(&holds, open, open));
    require(holds, "a dimension is itself");
    NEED(migraphx_dynamic_dimension_equal(&holds, open, best));
    require(!holds, "optimals differ");
    REFUSED(migraphx_status_bad_param, migraphx_dynamic_dimension_create_min_max(&fixed, 5, 4));
    list[0] = best, list[1] = fixed;
    NEED(migraphx_dynamic_dimensions_create(&both, list, 2));
    NEED(migraphx_dynamic_dimensions_size(&size, both));
    NEED(migraphx_shape_create_dynamic(&shape, migraphx_shape_float_type, both));
    NEED(migraphx_shape_dynamic(&holds, shape));
    require(size == 2 && holds, "an open shape");
    NEED(migraphx_shape_ndim(&size, shape));
    require(size == 2, "its rank");
    NEED(migraphx_shape_dyn_dims(&again, shape));
    NEED(migraphx_dynamic_dimensions_get(&first, again, 0));
    NEED(migraphx_dynamic_dimension_equal(&holds, first, best));
    require(holds, "a dimension of a shape");
    REFUSED(migraphx_status_bad_param, migraphx_dynamic_dimensions_get(&first, again, 2));
    NEED(migraphx_dynamic_dimensions_destroy(again));
    NEED(migraphx_shape_destroy(shape));
    NEED(migraphx_dynamic_dimensions_destroy(both));
    NEED(migraphx_dynamic_dimension_destroy(best));
    NEED(migraphx_dynamic_dimension_destroy(open));
    NEED(migraphx_dynamic_dimension_destroy(fixed));
    NEED(migraphx_optimals_destroy(optimals));
}

static void shapes(void)
{
    size_t lengths[] = {2, 3}, columns[] = {1, 2}, rank, size, place;
    const size_t* numbers;
    migraphx_shape_datatype_t type;
    migraphx_shape_t rows, transposed, scalar;
    bool holds;
    NEED(migraphx_shape_create(&rows, migraphx_shape_half_type, lengths, 2));
    NEED(migraphx_shape_create_with_strides(&transposed, migraphx_shape_half_type, lengths, 2, columns, 2));
    NEED(migraphx_shape_create_scalar(&scalar, migraphx_shape_int64_type));
    NEED(migraphx_shape_lengths(&numbers, &rank, transposed));
    require(rank == 2 && numbers[0] == 2 && numbers[1] == 3, "lengths");
    NEED(migraphx_shape_strides(&numbers, &rank, transposed));
    require(rank == 2 && numbers[0] == 1 && numbers[1] == 2, "strides");
    NEED(migraphx_shape_type(&type, rows));
    NEED(migraphx_shape_bytes(&size, rows));
    require(type == migraphx_shape_half_type && size == 12, "type and bytes");
    NEED(migraphx_shape_index(&place, transposed, 1));
    require(place == 2, "the place of an element");
    NEED(migraphx_shape_standard(&holds, rows));
    require(holds, "rows are standard");
    NEED(migraphx_shape_standard(&holds, transposed));
    require(!holds, "columns are not");
    NEED(migraphx_shape_equal(&holds, rows, transposed));
    require(!holds, "strides differ");
    NEED(migraphx_shape_elements(&size, scalar));
    require(size == 1, "a scalar has one element");
    NEED(migraphx_shape_bytes(&size, scalar));
    require(size == 8, "a scalar's bytes");
    NEED(migraphx_shape_assign_to(scalar, rows));
    NEED(migraphx_shape_equal(&holds, scalar, rows));
    require(holds, "a shape that was assigned");
    NEED(migraphx_shape_destroy(rows));
    NEED(migraphx_shape_destroy(transposed));
    NEED(migraphx_shape_destroy(scalar));
}

/* Compile and run with ones, and return the first element of the result. */
static float compiled(migraphx_program_t program, const char* target_name, size_t elements)
{
    migraphx_target_t target;
    migraphx_compile_options_t options;
    migraphx_program_parameter_shapes_t wanted;
    migraphx_program_parameters_t parameters;
    const_migraphx_shape_t shape;
    migraphx_shapes_t outputs;
    migraphx_argument_t input;
    migraphx_arguments_t results;
    const_migraphx_argument_t result;
    const char* name;
    char *data, *ones;
    size_t size, k;
    float first;
    NEED(migraphx_target_create(&target, target_name));
    NEED(migraphx_compile_options_create(&options));
    NEED(migraphx_compile_options_set_offload_copy(options, true));
    NEED(migraphx_compile_options_set_exhaustive_tune_flag(options, false));
    NEED(migraphx_compile_options_set_compile_mode(options, migraphx_compile_mode_balanced));
    NEED(migraphx_program_sort(program));
    NEED(migraphx_program_compile(program, target, options));
    NEED(migraphx_program_get_output_shapes(&outputs, program));
    NEED(migraphx_shapes_size(&size, outputs));
    require(size == 1, "one output");
    NEED(migraphx_shapes_get(&shape, outputs, 0));
    NEED(migraphx_shape_elements(&size, shape));
    require(size == elements, "elements of the output");
    NEED(migraphx_program_get_parameter_shapes(&wanted, program));
    NEED(migraphx_program_parameter_shapes_names(&name, wanted));
    NEED(migraphx_program_parameter_shapes_get(&shape, wanted, name));
    NEED(migraphx_argument_create_empty(&input, shape));
    NEED(migraphx_argument_buffer(&ones, input));
    NEED(migraphx_shape_elements(&size, shape));
    for(k = 0; k < size; k++)
        ((float*)ones)[k] = 1;
    NEED(migraphx_program_parameters_create(&parameters));
    NEED(migraphx_program_parameters_add(parameters, name, input));
    NEED(migraphx_program_run_async(&results, program, parameters, NULL, "ihipStream_t"));
    NEED(migraphx_arguments_get(&result, results, 0));
    NEED(migraphx_argument_buffer(&data, result));
    first = *(float*)data;
    NEED(migraphx_arguments_destroy(results));
    NEED(migraphx_program_parameters_destroy(parameters));
    NEED(migraphx_argument_destroy(input));
    NEED(migraphx_program_parameter_shapes_destroy(wanted));
    NEED(migraphx_shapes_destroy(outputs));
    NEED(migraphx_compile_options_destroy(options));
    NEED(migraphx_target_destroy(target));
    return first;
}

static migraphx_program_t parsed(const char* file, migraphx_onnx_options_t options)
{
    migraphx_program_t program;
    NEED(migraphx_parse_onnx(&program, in_folder(file), options));
    return program;
}

static migraphx_program_t fixed(void)
{
    migraphx_onnx_options_t options;
    migraphx_program_t program;
    NEED(migraphx_onnx_options_create(&options));
    NEED(migraphx_onnx_options_set_default_dim_value(options, 4));
    program = parsed("net.onnx", options);
    NEED(migraphx_onnx_options_destroy(options));
    return program;
}

/* The first length of the only parameter: the greatest one, if it is open. */
static size_t first_length(migraphx_program_t program)
{
    migraphx_program_parameter_shapes_t shapes;
    migraphx_dynamic_dimensions_t dims;
    const_migraphx_dynamic_dimension_t first;
    const_migraphx_shape_t shape;
    migraphx_dynamic_dimension_t range;
    bool holds;
    NEED(migraphx_program_get_parameter_shapes(&shapes, program));
    NEED(migraphx_program_parameter_shapes_get(&shape, shapes, "x"));
    NEED(migraphx_shape_dyn_dims(&dims, shape));
    NEED(migraphx_dynamic_dimensions_get(&first, dims, 0));
    NEED(migraphx_dynamic_dimension_create_min_max(&range, 1, 4));
    NEED(migraphx_dynamic_dimension_equal(&holds, first, range));
    NEED(migraphx_dynamic_dimension_destroy(range));
    NEED(migraphx_dynamic_dimensions_destroy(dims));
    NEED(migraphx_program_parameter_shapes_destroy(shapes));
    return holds ? 4 : 0;
}

static void reading(float expected)
{
    migraphx_onnx_options_t options;
    migraphx_dynamic_dimension_t range, six;
    const_migraphx_dynamic_dimension_t list[2];
    migraphx_dynamic_dimensions_t dims;
    migraphx_program_t program;
    char buffer[4000];
    char* name;
    FILE* file;
    size_t size, k;
    bool found = false;
    NEED(migraphx_dynamic_dimension_create_min_max(&range, 1, 4));
    NEED(migraphx_dynamic_dimension_create_min_max(&six, 6, 6));
    NEED(migraphx_onnx_options_create(&options));
    NEED(migraphx_onnx_options_set_default_dyn_dim_value(options, range));
    program = parsed("net.onnx", options);
    require(first_length(program) == 4, "a default range");
    NEED(migraphx_program_destroy(program));
    NEED(migraphx_onnx_options_destroy(options));
    NEED(migraphx_onnx_options_create(&options));
    list[0] = range, list[1] = six;
    NEED(migraphx_dynamic_dimensions_create(&dims, list, 2));
    NEED(migraphx_onnx_options_set_dyn_input_parameter_shape(options, "x", dims));
    program = parsed("net.onnx", options);
    require(first_length(program) == 4, "a range of an input");
    NEED(migraphx_program_destroy(program));
    NEED(migraphx_dynamic_dimensions_destroy(dims));
    NEED(migraphx_dynamic_dimension_destroy(six));
    NEED(migraphx_dynamic_dimension_destroy(range));
    NEED(migraphx_onnx_options_destroy(options));
    NEED(migraphx_onnx_options_create(&options));
    NEED(migraphx_onnx_options_set_default_loop_iterations(options, 3));
    NEED(migraphx_onnx_options_set_limit_loop_iterations(options, 5));
    program = parsed("loop.onnx", options);
    require(compiled(program, "cpu", 1) == 8, "a loop of three iterations doubles");
    NEED(migraphx_program_destroy(program));
    NEED(migraphx_onnx_options_destroy(options));
    file = fopen(in_folder("outside.onnx"), "rb");
    require(file != NULL, "a model with weights outside");
    size = fread(buffer, 1, sizeof buffer, file);
    fclose(file);
    NEED(migraphx_onnx_options_create(&options));
    NEED(migraphx_onnx_options_set_external_data_path(options, in_folder("weights")));
    NEED(migraphx_onnx_options_set_default_dim_value(options, 4));
    NEED(migraphx_parse_onnx_buffer(&program, buffer, size, options));
    require(compiled(program, "ref", 20) == expected, "weights of another folder");
    NEED(migraphx_program_destroy(program));
    program = parsed("outside.onnx", options);
    require(compiled(program, "ref", 20) == expected, "the same for a file");
    NEED(migraphx_program_destroy(program));
    NEED(migraphx_onnx_options_destroy(options));
    NEED(migraphx_get_onnx_operators_size(&size));
    for(k = 0; k < size; k++) {
        NEED(migraphx_get_onnx_operator_name_at_index(&name, k));
        found = found || strcmp(name, "Conv") == 0;
    }
    require(size > 100 && found, "names of operators");
    REFUSED(migraphx_status_bad_param, migraphx_get_onnx_operator_name_at_index(&name, size));
}

static void tensorflow(void)
{
    migraphx_tf_options_t options;
    migraphx_program_t program;
    size_t lengths[] = {2, 3};
    const char* names[] = {"twice"};
    char buffer[4000];
    FILE* file = fopen(in_folder("graph.pb"), "rb");
    size_t size = file == NULL ? 0 : fread(buffer, 1, sizeof buffer, file);
    require(size != 0, "a graph of TensorFlow");
    fclose(file);
    NEED(migraphx_tf_options_create(&options));
    NEED(migraphx_tf_options_set_nhwc(options, true));
    NEED(migraphx_tf_options_set_output_names(options, names, 1));
    NEED(migraphx_tf_options_set_default_dim_value(options, 5));
    NEED(migraphx_parse_tf(&program, in_folder("graph.pb"), options));
    require(compiled(program, "cpu", 15) == 2, "a default length");
    NEED(migraphx_program_destroy(program));
    NEED(migraphx_tf_options_set_input_parameter_shape(options, "x", lengths, 2));
    NEED(migraphx_parse_tf_buffer(&program, buffer, size, options));
    require(compiled(program, "cpu", 6) == 2, "a shape of an input");
    NEED(migraphx_program_destroy(program));
    REFUSED(migraphx_status_unknown_error, migraphx_parse_tf_buffer(&program, "none", 4, options));
    NEED(migraphx_tf_options_destroy(options));
}

static void files(float expected)
{
    migraphx_file_options_t options;
    migraphx_program_t program = fixed(), again;
    bool equal;
    NEED(migraphx_file_options_create(&options));
    NEED(migraphx_file_options_set_file_format(options, "json"));
    NEED(migraphx_file_options_set_trust_objects(options, false));
    NEED(migraphx_save(program, in_folder("net.json"), options));
    NEED(migraphx_load(&again, in_folder("net.json"), options));
    NEED(migraphx_program_equal(&equal, program, again));
    require(equal && compiled(again, "ref", 20) == expected, "a program as JSON");
    NEED(migraphx_program_destroy(again));
    NEED(migraphx_file_options_set_file_format(options, "yaml"));
    REFUSED(migraphx_status_unknown_error, migraphx_save(program, in_folder("net.yaml"), options));
    NEED(migraphx_file_options_destroy(options));
    NEED(migraphx_program_destroy(program));
}

static void near_to(float found, float expected, const char* title)
{
    require(found > expected - 0.1f * (1 + (expected < 0 ? -expected : expected)) &&
                found < expected + 0.1f * (1 + (expected < 0 ? -expected : expected)),
            title);
}

static void quantized(float expected)
{
    migraphx_program_t program;
    migraphx_quantize_op_names_t names;
    migraphx_quantize_int8_options_t bytes;
    migraphx_quantize_fp8_options_t floats8;
    migraphx_program_parameters_t data;
    migraphx_argument_t input;
    migraphx_shape_t shape = floats(LENGTHS, 2);
    migraphx_target_t target;
    NEED(migraphx_target_create(&target, "cpu"));
    NEED(migraphx_argument_generate(&input, shape, 1));
    NEED(migraphx_program_parameters_create(&data));
    NEED(migraphx_program_parameters_add(data, "x", input));
    NEED(migraphx_quantize_op_names_create(&names));
    NEED(migraphx_quantize_op_names_add(names, "dot"));
    program = fixed();
    NEED(migraphx_quantize_fp16_with_op_names(program, names));
    near_to(compiled(program, "cpu", 20), expected, "products in float16");
    NEED(migraphx_program_destroy(program));
    program = fixed();
    NEED(migraphx_quantize_bf16_with_op_names(program, names));
    near_to(compiled(program, "cpu", 20), expected, "products in bfloat16");
    NEED(migraphx_program_destroy(program));
    program = fixed();
    NEED(migraphx_quantize_bf16(program));
    near_to(compiled(program, "cpu", 20), expected, "bfloat16");
    NEED(migraphx_program_destroy(program));
    NEED(migraphx_quantize_int8_options_create(&bytes));
    NEED(migraphx_quantize_int8_options_add_op_name(bytes, "dot"));
    NEED(migraphx_quantize_int8_options_add_op_name(bytes, "convolution"));
    NEED(migraphx_quantize_int8_options_add_calibration_data(bytes, data));
    program = fixed();
    NEED(migraphx_quantize_int8(program, target, bytes));
    near_to(compiled(program, "cpu", 20), expected, "8-bit integers");
    NEED(migraphx_program_destroy(program));
    NEED(migraphx_quantize_fp8_options_create(&floats8));
    NEED(migraphx_quantize_fp8_options_add_calibration_data(floats8, data));
    program = fixed();
    NEED(migraphx_quantize_fp8(program, target, floats8));
    near_to(compiled(program, "cpu", 20), expected, "8-bit floats");
    NEED(migraphx_program_destroy(program));
    NEED(migraphx_quantize_fp8_options_destroy(floats8));
    NEED(migraphx_quantize_int8_options_destroy(bytes));
    NEED(migraphx_quantize_op_names_destroy(names));
    NEED(migraphx_program_parameters_destroy(data));
    NEED(migraphx_argument_destroy(input));
    NEED(migraphx_shape_destroy(shape));
    NEED(migraphx_target_destroy(target));
}

static migraphx_status no_alias(size_t* out, size_t* size, void* object, char* message, size_t room,
                                migraphx_shapes_t inputs)
{
    (void)out, (void)object, (void)message, (void)room, (void)inputs;
    *size = 0;
    return migraphx_status_success;
}

static migraphx_status on_host(bool* out, void* object, char* message, size_t room)
{
    (void)object, (void)message, (void)room;
    *out = false;
    return migraphx_status_success;
}

static migraphx_status same(void** out, void* input)
{
    *out = input;
    return migraphx_status_success;
}

static migraphx_status kept(void* input)
{
    (void)input;
    return migraphx_status_success;
}

/* y = x > 0 ? x : allocated memory plus the literal, in modules of the program. */
static void built(void)
{
    const size_t one[] = {1};
    const float five = 5;
    migraphx_experimental_custom_op_t custom;
    migraphx_program_t program;
    migraphx_module_t main_module, bodies[2];
    migraphx_modules_t both;
    migraphx_shape_t shape = floats(one, 1);
    migraphx_operation_t operation;
    migraphx_instruction_t x, literal, memory, y, out;
    const_migraphx_instruction_t list[2];
    migraphx_instructions_t arguments;
    migraphx_context_t context;
    migraphx_trace_info_t info;
    const_migraphx_argument_t result;
    size_t index;
    void* queue = &index;
    NEED(migraphx_experimental_custom_op_create(&custom, &index, same, kept, "size_t", "aliasing"));
    NEED(migraphx_experimental_custom_op_set_output_alias(custom, no_alias));
    NEED(migraphx_experimental_custom_op_set_runs_on_offload_target(custom, on_host));
    NEED(migraphx_experimental_custom_op_destroy(custom));
    NEED(migraphx_trace_info_create(&info));
    NEED(migraphx_trace_info_get_index(&index, info));
    NEED(migraphx_trace_info_get_result(&result, info));
    require(index == 0, "an empty trace");
    NEED(migraphx_trace_info_destroy(info));
    NEED(migraphx_program_create(&program));
    NEED(migraphx_program_get_main_module(&main_module, program));
    NEED(migraphx_module_add_parameter(&x, main_module, "x", shape));
    NEED(migraphx_module_add_literal(&literal, main_module, shape, (const char*)&five));
    NEED(migraphx_operation_create(&operation, "greater", NULL));
    list[0] = x, list[1] = literal;
    NEED(migraphx_instructions_create(&arguments, list, 2));
    NEED(migraphx_module_add_instruction(&y, main_module, operation, arguments));
    NEED(migraphx_instructions_destroy(arguments));
    NEED(migraphx_operation_destroy(operation));
    list[0] = y;
    NEED(migraphx_operation_create(&operation, "convert", "{target_type: %d}", migraphx_shape_bool_type));
    NEED(migraphx_instructions_create(&arguments, list, 1));
    NEED(migraphx_instruction_destroy(y));
    NEED(migraphx_module_add_instruction(&y, main_module, operation, arguments));
    NEED(migraphx_instructions_destroy(arguments));
    NEED(migraphx_operation_destroy(operation));
    NEED(migraphx_program_create_module(&bodies[0], program, "then"));
    NEED(migraphx_program_create_module(&bodies[1], program, "else"));
    list[0] = x;
    NEED(migraphx_instructions_create(&arguments, list, 1));
    NEED(migraphx_module_add_return(&out, bodies[0], arguments));
    NEED(migraphx_instruction_destroy(out));
    NEED(migraphx_instructions_destroy(arguments));
    NEED(migraphx_module_add_allocation(&memory, bodies[1], shape));
    NEED(migraphx_instruction_destroy(memory));
    list[0] = literal;
    NEED(migraphx_instructions_create(&arguments, list, 1));
    NEED(migraphx_module_add_return(&out, bodies[1], arguments));
    NEED(migraphx_instruction_destroy(out));
    NEED(migraphx_instructions_destroy(arguments));
    NEED(migraphx_modules_create(&both, bodies, 2));
    list[0] = y;
    NEED(migraphx_instructions_create(&arguments, list, 1));
    NEED(migraphx_operation_create(&operation, "if", NULL));
    NEED(migraphx_instruction_destroy(y));
    NEED(migraphx_module_add_instruction_with_mod_args(&y, main_module, operation, arguments, both));
    NEED(migraphx_instructions_destroy(arguments));
    NEED(migraphx_operation_destroy(operation));
    list[0] = y;
    NEED(migraphx_instructions_create(&arguments, list, 1));
    NEED(migraphx_operation_create(&operation, "get_tuple_elem", "{index: 0}"));
    NEED(migraphx_instruction_destroy(y));
    NEED(migraphx_module_add_instruction(&y, main_module, operation, arguments));
    NEED(migraphx_instructions_destroy(arguments));
    list[0] = y;
    NEED(migraphx_instructions_create(&arguments, list, 1));
    NEED(migraphx_module_add_return(&out, main_module, arguments));
    NEED(migraphx_module_print(main_module));
    NEED(migraphx_program_print(program));
    require(compiled(program, "cpu", 1) == 5, "a branch that reads the program's literal");
    NEED(migraphx_program_experimental_get_context(&context, program));
    NEED(migraphx_context_finish(context));
    NEED(migraphx_context_get_queue(&queue, context));
    require(queue == NULL, "the CPU has no queue");
    NEED(migraphx_instructions_destroy(arguments));
    NEED(migraphx_operation_destroy(operation));
    NEED(migraphx_modules_destroy(both));
    NEED(migraphx_instruction_destroy(x));
    NEED(migraphx_instruction_destroy(y));
    NEED(migraphx_instruction_destroy(out));
    NEED(migraphx_instruction_destroy(literal));
    NEED(migraphx_shape_destroy(shape));
    NEED(migraphx_program_destroy(program));
}

int main(int argc, char** argv)
{
    migraphx_program_t program;
    float expected;
    require(argc == 2, "usage: c_surface FOLDER");
    snprintf(folder, sizeof folder, "%s", argv[1]);
    program = fixed();
    expected = compiled(program, "ref", 20);
    NEED(migraphx_program_destroy(program));
    dimensions();
    shapes();
    reading(expected);
    tensorflow();
    files(expected);
    quantized(expected);
    built();
    printf("all hold\n");
    return 0;
}
