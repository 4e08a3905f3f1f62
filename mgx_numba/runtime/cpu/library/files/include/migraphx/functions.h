/* The functions of MIGraphX's C interface: name, parameters, and the meaning in C++, which only migraphx.cpp reads.
 *
 * There, AT(handle) is the value of a handle, GIVE(out, value) makes a new handle, SET(out, value) writes a plain value,
 * TEXT(name) is a string, LIST(pointer, size) is a vector; all of them refuse NULL. GIVEN(options) are defaults for NULL.
 */

MIGRAPHX_FUNCTION(optimals_create, (migraphx_optimals_t* optimals, const size_t* ptr, size_t size),
    const auto found = LIST(ptr, size); GIVE(optimals, {found.begin(), found.end()}))
MIGRAPHX_FUNCTION(dynamic_dimension_create_min_max, (migraphx_dynamic_dimension_t* dynamic_dimension, size_t min, size_t max),
    GIVE(dynamic_dimension, {min, max}))
MIGRAPHX_FUNCTION(dynamic_dimension_create_min_max_optimals,
    (migraphx_dynamic_dimension_t* dynamic_dimension, size_t min, size_t max, migraphx_optimals_t optimals),
    GIVE(dynamic_dimension, {min, max, AT(optimals)}))
MIGRAPHX_FUNCTION(dynamic_dimension_is_fixed, (bool* out, const_migraphx_dynamic_dimension_t dynamic_dimension),
    SET(out, AT(dynamic_dimension).is_fixed()))
MIGRAPHX_FUNCTION(dynamic_dimension_equal,
    (bool* out, const_migraphx_dynamic_dimension_t dynamic_dimension, const_migraphx_dynamic_dimension_t x),
    SET(out, AT(dynamic_dimension) == AT(x)))
MIGRAPHX_FUNCTION(dynamic_dimensions_create,
    (migraphx_dynamic_dimensions_t* dynamic_dimensions, const const_migraphx_dynamic_dimension_t* ptr, size_t size),
    GIVE(dynamic_dimensions, values(LIST(ptr, size))))
MIGRAPHX_FUNCTION(dynamic_dimensions_size, (size_t* out, migraphx_dynamic_dimensions_t dynamic_dimensions),
    SET(out, AT(dynamic_dimensions).size()))
MIGRAPHX_FUNCTION(dynamic_dimensions_get,
    (const_migraphx_dynamic_dimension_t* out, migraphx_dynamic_dimensions_t dynamic_dimensions, size_t idx),
    SET(out, &element(AT(dynamic_dimensions), idx)))

MIGRAPHX_FUNCTION(shape_create,
    (migraphx_shape_t* shape, migraphx_shape_datatype_t type, size_t* lengths, size_t lengths_size),
    GIVE(shape, {type, LIST(lengths, lengths_size)}))
MIGRAPHX_FUNCTION(shape_create_with_strides,
    (migraphx_shape_t* shape, migraphx_shape_datatype_t type, size_t* lengths, size_t lengths_size, size_t* strides,
     size_t strides_size),
    GIVE(shape, {type, LIST(lengths, lengths_size), LIST(strides, strides_size)}))
MIGRAPHX_FUNCTION(shape_create_scalar, (migraphx_shape_t* shape, migraphx_shape_datatype_t type),
    GIVE(shape, migraphx::shape(type)))
MIGRAPHX_FUNCTION(shape_create_dynamic,
    (migraphx_shape_t* shape, migraphx_shape_datatype_t type, migraphx_dynamic_dimensions_t dims),
    GIVE(shape, {type, ranges(AT(dims))}))
MIGRAPHX_FUNCTION(shape_lengths, (const size_t** out, size_t* out_size, const_migraphx_shape_t shape),
    SPAN(out, out_size, AT(shape).lengths()))
MIGRAPHX_FUNCTION(shape_strides, (const size_t** out, size_t* out_size, const_migraphx_shape_t shape),
    SPAN(out, out_size, AT(shape).strides()))
MIGRAPHX_FUNCTION(shape_dyn_dims, (migraphx_dynamic_dimensions_t* out, const_migraphx_shape_t shape),
    GIVE(out, wrapped<migraphx_dynamic_dimension>(AT(shape).dyn_dims())))
MIGRAPHX_FUNCTION(shape_type, (migraphx_shape_datatype_t* out, const_migraphx_shape_t shape), SET(out, AT(shape).type()))
MIGRAPHX_FUNCTION(shape_elements, (size_t* out, const_migraphx_shape_t shape), SET(out, AT(shape).elements()))
MIGRAPHX_FUNCTION(shape_bytes, (size_t* out, const_migraphx_shape_t shape), SET(out, AT(shape).bytes()))
MIGRAPHX_FUNCTION(shape_ndim, (size_t* out, const_migraphx_shape_t shape), SET(out, AT(shape).ndim()))
MIGRAPHX_FUNCTION(shape_equal, (bool* out, const_migraphx_shape_t shape, const_migraphx_shape_t x),
    SET(out, AT(shape) == AT(x)))
MIGRAPHX_FUNCTION(shape_standard, (bool* out, const_migraphx_shape_t shape), SET(out, AT(shape).standard()))
MIGRAPHX_FUNCTION(shape_dynamic, (bool* out, const_migraphx_shape_t shape), SET(out, AT(shape).dynamic()))
MIGRAPHX_FUNCTION(shape_index, (size_t* out, const_migraphx_shape_t shape, size_t i), SET(out, place(AT(shape), i)))

MIGRAPHX_FUNCTION(argument_create, (migraphx_argument_t* argument, const_migraphx_shape_t shape, void* buffer),
    GIVE(argument, migraphx::argument(AT(shape), static_cast<const void*>(buffer))))
MIGRAPHX_FUNCTION(argument_create_empty, (migraphx_argument_t* argument, const_migraphx_shape_t shape),
    GIVE(argument, migraphx::argument(AT(shape))))
MIGRAPHX_FUNCTION(argument_shape, (const_migraphx_shape_t* out, const_migraphx_argument_t argument),
    AT(argument); SET(out, &argument->shape))
MIGRAPHX_FUNCTION(argument_buffer, (char** out, const_migraphx_argument_t argument), SET(out, AT(argument).data()))
MIGRAPHX_FUNCTION(argument_equal, (bool* out, const_migraphx_argument_t argument, const_migraphx_argument_t x),
    SET(out, filled(AT(argument)) == filled(AT(x))))
MIGRAPHX_FUNCTION(argument_save, (const_migraphx_argument_t a, const char* filename),
    migraphx::save_argument(AT(a), TEXT(filename)))
MIGRAPHX_FUNCTION(argument_load, (migraphx_argument_t* out, const char* filename),
    GIVE(out, migraphx::load_argument(TEXT(filename))))
MIGRAPHX_FUNCTION(argument_generate, (migraphx_argument_t* out, const_migraphx_shape_t s, size_t seed),
    GIVE(out, migraphx::generate_argument(AT(s), seed)))

MIGRAPHX_FUNCTION(target_create, (migraphx_target_t* target, const char* name), GIVE(target, known_target(TEXT(name))))

MIGRAPHX_FUNCTION(program_parameter_shapes_size, (size_t* out, migraphx_program_parameter_shapes_t program_parameter_shapes),
    SET(out, AT(program_parameter_shapes).size()))
MIGRAPHX_FUNCTION(program_parameter_shapes_get,
    (const_migraphx_shape_t* out, migraphx_program_parameter_shapes_t program_parameter_shapes, const char* name),
    SET(out, &named(AT(program_parameter_shapes), TEXT(name))))
MIGRAPHX_FUNCTION(program_parameter_shapes_names,
    (const char** out, migraphx_program_parameter_shapes_t program_parameter_shapes),
    for(const auto& entry : AT(program_parameter_shapes)) { SET(out, entry.first.c_str()); out++; })
MIGRAPHX_FUNCTION(program_parameters_create, (migraphx_program_parameters_t* program_parameters),
    GIVE(program_parameters, {}))
MIGRAPHX_FUNCTION(program_parameters_add,
    (migraphx_program_parameters_t program_parameters, const char* name, const_migraphx_argument_t argument),
    AT(program_parameters).add(TEXT(name).c_str(), AT(argument)))
MIGRAPHX_FUNCTION(arguments_size, (size_t* out, migraphx_arguments_t arguments), SET(out, AT(arguments).size()))
MIGRAPHX_FUNCTION(arguments_get, (const_migraphx_argument_t* out, migraphx_arguments_t arguments, size_t idx),
    SET(out, &element(AT(arguments), idx)))
MIGRAPHX_FUNCTION(shapes_size, (size_t* out, migraphx_shapes_t shapes), SET(out, AT(shapes).size()))
MIGRAPHX_FUNCTION(shapes_get, (const_migraphx_shape_t* out, migraphx_shapes_t shapes, size_t idx),
    SET(out, &element(AT(shapes), idx)))

MIGRAPHX_FUNCTION(instructions_create,
    (migraphx_instructions_t* instructions, const const_migraphx_instruction_t* ptr, size_t size),
    GIVE(instructions, members(LIST(ptr, size))))
MIGRAPHX_FUNCTION(modules_create, (migraphx_modules_t* modules, migraphx_module_t* ptr, size_t size),
    GIVE(modules, members(LIST(ptr, size))))
MIGRAPHX_FUNCTION(module_create, (migraphx_module_t* module, char* name),
    GIVE(module, migraphx::module(TEXT(name))))
MIGRAPHX_FUNCTION(module_print, (const_migraphx_module_t module), AT(module).print(); std::cout.flush())
MIGRAPHX_FUNCTION(module_add_instruction,
    (migraphx_instruction_t* out, migraphx_module_t module, migraphx_operation_t op, migraphx_instructions_t args),
    GIVE(out, AT(module).add_instruction(AT(op), AT(args))))
MIGRAPHX_FUNCTION(module_add_instruction_with_mod_args,
    (migraphx_instruction_t* out, migraphx_module_t module, migraphx_operation_t op, migraphx_instructions_t args,
     migraphx_modules_t module_refs),
    GIVE(out, AT(module).add_instruction(AT(op), AT(args), AT(module_refs))))
MIGRAPHX_FUNCTION(module_add_literal,
    (migraphx_instruction_t* out, migraphx_module_t module, const_migraphx_shape_t shape, const char* buffer),
    GIVE(out, AT(module).add_literal(AT(shape), buffer)))
MIGRAPHX_FUNCTION(module_add_parameter,
    (migraphx_instruction_t* out, migraphx_module_t module, const char* name, const_migraphx_shape_t shape),
    GIVE(out, AT(module).add_parameter(TEXT(name), AT(shape))))
MIGRAPHX_FUNCTION(module_add_return, (migraphx_instruction_t* out, migraphx_module_t module, migraphx_instructions_t args),
    GIVE(out, AT(module).add_return(AT(args))))
MIGRAPHX_FUNCTION(module_add_allocation, (migraphx_instruction_t* out, migraphx_module_t module, const_migraphx_shape_t s),
    GIVE(out, AT(module).add_allocation(AT(s))))

MIGRAPHX_FUNCTION(trace_info_create, (migraphx_trace_info_t* trace_info), GIVE(trace_info, migraphx::trace_info()))
MIGRAPHX_FUNCTION(trace_info_get_index, (size_t* out, const_migraphx_trace_info_t trace_info),
    SET(out, AT(trace_info).get_index()))
MIGRAPHX_FUNCTION(trace_info_get_name, (const char** out, const_migraphx_trace_info_t trace_info),
    SET(out, AT(trace_info).get_name().c_str()))
MIGRAPHX_FUNCTION(trace_info_get_result, (const_migraphx_argument_t* out, const_migraphx_trace_info_t trace_info),
    AT(trace_info); SET(out, &trace_info->result))

MIGRAPHX_FUNCTION(program_create, (migraphx_program_t* program), GIVE(program, migraphx::program()))
MIGRAPHX_FUNCTION(program_get_main_module, (migraphx_module_t* out, migraphx_program_t program),
    AT(program); SET(out, program->keep(AT(program).get_main_module())))
MIGRAPHX_FUNCTION(program_create_module, (migraphx_module_t* out, migraphx_program_t program, const char* name),
    AT(program); SET(out, program->keep(AT(program).create_module(TEXT(name)))))
MIGRAPHX_FUNCTION(program_compile, (migraphx_program_t program, migraphx_target_t target, migraphx_compile_options_t options),
    AT(program).compile(AT(target), GIVEN(options)))
MIGRAPHX_FUNCTION(program_get_parameter_shapes, (migraphx_program_parameter_shapes_t* out, migraphx_program_t program),
    GIVE(out, entries(AT(program).get_parameter_shapes())))
MIGRAPHX_FUNCTION(program_get_output_shapes, (migraphx_shapes_t* out, migraphx_program_t program),
    GIVE(out, wrapped<migraphx_shape>(AT(program).get_output_shapes())))
MIGRAPHX_FUNCTION(program_print, (const_migraphx_program_t program), AT(program).print(); std::cout.flush())
MIGRAPHX_FUNCTION(program_sort, (migraphx_program_t program), AT(program).sort())
MIGRAPHX_FUNCTION(program_run,
    (migraphx_arguments_t* out, migraphx_program_t program, migraphx_program_parameters_t params),
    GIVE(out, wrapped<migraphx_argument>(AT(program).eval(AT(params)))))
MIGRAPHX_FUNCTION(program_run_async,
    (migraphx_arguments_t* out, migraphx_program_t program, migraphx_program_parameters_t params, void* s, const char* name),
    TEXT(name); GIVE(out, wrapped<migraphx_argument>(AT(program).run_async(AT(params), s))))
MIGRAPHX_FUNCTION(program_run_trace,
    (migraphx_arguments_t* out, migraphx_program_t program, migraphx_program_parameters_t params,
     migraphx_trace_callback_t callback, void* data),
    GIVE(out, wrapped<migraphx_argument>(traced(AT(program), AT(params), callback, data))))
MIGRAPHX_FUNCTION(program_equal, (bool* out, const_migraphx_program_t program, const_migraphx_program_t x),
    SET(out, AT(program) == AT(x)))
MIGRAPHX_FUNCTION(program_experimental_get_context, (migraphx_context_t* out, const_migraphx_program_t program),
    AT(program); SET(out, &the_context))

MIGRAPHX_PRINTF_FUNCTION(operation_create,
    (migraphx_operation_t* operation, const char* name, const char* attributes, ...), attributes,
    GIVE(operation, {TEXT(name), written}))
MIGRAPHX_FUNCTION(operation_name, (char* out, size_t out_size, migraphx_operation_t operation),
    copy_text(AT(operation).name(), out, out_size))

MIGRAPHX_FUNCTION(load, (migraphx_program_t* out, const char* name, migraphx_file_options_t options),
    GIVE(out, migraphx::load(TEXT(name), GIVEN(options))))
MIGRAPHX_FUNCTION(save, (migraphx_program_t p, const char* name, migraphx_file_options_t options),
    migraphx::save(AT(p), TEXT(name), GIVEN(options)))

MIGRAPHX_FUNCTION(onnx_options_create, (migraphx_onnx_options_t* onnx_options), GIVE(onnx_options, {}))
MIGRAPHX_FUNCTION(onnx_options_set_input_parameter_shape,
    (migraphx_onnx_options_t onnx_options, const char* name, size_t* dims, size_t dims_size),
    AT(onnx_options).set_input_parameter_shape(TEXT(name), LIST(dims, dims_size)))
MIGRAPHX_FUNCTION(onnx_options_set_dyn_input_parameter_shape,
    (migraphx_onnx_options_t onnx_options, const char* name, migraphx_dynamic_dimensions_t dims),
    AT(onnx_options).set_dyn_input_parameter_shape(TEXT(name), ranges(AT(dims))))
MIGRAPHX_FUNCTION(onnx_options_set_default_dim_value, (migraphx_onnx_options_t onnx_options, size_t value),
    AT(onnx_options).default_dim_value = value)
MIGRAPHX_FUNCTION(onnx_options_set_default_dyn_dim_value,
    (migraphx_onnx_options_t onnx_options, const_migraphx_dynamic_dimension_t dd),
    AT(onnx_options).set_default_dyn_dim_value(AT(dd)))
MIGRAPHX_FUNCTION(onnx_options_set_default_loop_iterations, (migraphx_onnx_options_t onnx_options, int64_t value),
    AT(onnx_options).set_default_loop_iterations(value))
MIGRAPHX_FUNCTION(onnx_options_set_limit_loop_iterations, (migraphx_onnx_options_t onnx_options, int64_t value),
    AT(onnx_options).set_limit_loop_iterations(value))
MIGRAPHX_FUNCTION(onnx_options_set_external_data_path,
    (migraphx_onnx_options_t onnx_options, const char* external_data_path),
    AT(onnx_options).set_external_data_path(TEXT(external_data_path)))
MIGRAPHX_FUNCTION(onnx_options_set_use_debug_symbols, (migraphx_onnx_options_t onnx_options, bool value),
    AT(onnx_options).set_use_debug_symbols(value))
MIGRAPHX_FUNCTION(file_options_create, (migraphx_file_options_t* file_options), GIVE(file_options, {}))
MIGRAPHX_FUNCTION(file_options_set_file_format, (migraphx_file_options_t file_options, const char* format),
    AT(file_options).set_file_format(TEXT(format)))
MIGRAPHX_FUNCTION(file_options_set_trust_objects, (migraphx_file_options_t file_options, bool value), /* not MIGraphX's */
    AT(file_options).set_trust_objects(value))
MIGRAPHX_FUNCTION(compile_options_create, (migraphx_compile_options_t* compile_options), GIVE(compile_options, {}))
MIGRAPHX_FUNCTION(compile_options_set_offload_copy, (migraphx_compile_options_t compile_options, bool value),
    AT(compile_options).set_offload_copy(value))
MIGRAPHX_FUNCTION(compile_options_set_fast_math, (migraphx_compile_options_t compile_options, bool value),
    AT(compile_options).set_fast_math(value))
MIGRAPHX_FUNCTION(compile_options_set_exhaustive_tune_flag, (migraphx_compile_options_t compile_options, bool value),
    AT(compile_options).set_exhaustive_tune_flag(value))
MIGRAPHX_FUNCTION(compile_options_set_compile_mode, (migraphx_compile_options_t compile_options, unsigned value),
    AT(compile_options).set_compile_mode(value))
MIGRAPHX_FUNCTION(parse_onnx, (migraphx_program_t* out, const char* name, migraphx_onnx_options_t options),
    GIVE(out, migraphx::parse_onnx(TEXT(name), GIVEN(options))))
MIGRAPHX_FUNCTION(parse_onnx_buffer,
    (migraphx_program_t* out, const void* data, size_t size, migraphx_onnx_options_t options),
    GIVE(out, migraphx::parse_onnx_buffer(BYTES(data, size), GIVEN(options))))
MIGRAPHX_FUNCTION(tf_options_create, (migraphx_tf_options_t* tf_options), GIVE(tf_options, {}))
MIGRAPHX_FUNCTION(tf_options_set_nhwc, (migraphx_tf_options_t tf_options, bool is_nhwc), AT(tf_options).set_nhwc(is_nhwc))
MIGRAPHX_FUNCTION(tf_options_set_input_parameter_shape,
    (migraphx_tf_options_t tf_options, const char* name, size_t* dims, size_t dims_size),
    AT(tf_options).set_input_parameter_shape(TEXT(name), LIST(dims, dims_size)))
MIGRAPHX_FUNCTION(tf_options_set_default_dim_value, (migraphx_tf_options_t tf_options, size_t value),
    AT(tf_options).set_default_dim_value(static_cast<unsigned>(value)))
MIGRAPHX_FUNCTION(tf_options_set_output_names, (migraphx_tf_options_t tf_options, const char** names, size_t names_size),
    AT(tf_options).set_output_names(texts(LIST(names, names_size))))
MIGRAPHX_FUNCTION(parse_tf, (migraphx_program_t* out, const char* name, migraphx_tf_options_t options),
    GIVE(out, migraphx::parse_tf(TEXT(name), GIVEN(options))))
MIGRAPHX_FUNCTION(parse_tf_buffer, (migraphx_program_t* out, const void* data, size_t size, migraphx_tf_options_t options),
    GIVE(out, migraphx::parse_tf_buffer(BYTES(data, size), GIVEN(options))))

MIGRAPHX_FUNCTION(quantize_op_names_create, (migraphx_quantize_op_names_t* quantize_op_names), GIVE(quantize_op_names, {}))
MIGRAPHX_FUNCTION(quantize_op_names_add, (migraphx_quantize_op_names_t quantize_op_names, const char* name),
    AT(quantize_op_names).add(TEXT(name)))
MIGRAPHX_FUNCTION(quantize_fp16_with_op_names, (migraphx_program_t prog, migraphx_quantize_op_names_t name),
    migraphx::quantize_fp16(AT(prog), AT(name)))
MIGRAPHX_FUNCTION(quantize_fp16, (migraphx_program_t prog), migraphx::quantize_fp16(AT(prog)))
MIGRAPHX_FUNCTION(quantize_bf16_with_op_names, (migraphx_program_t prog, migraphx_quantize_op_names_t name),
    migraphx::quantize_bf16(AT(prog), AT(name)))
MIGRAPHX_FUNCTION(quantize_bf16, (migraphx_program_t prog), migraphx::quantize_bf16(AT(prog)))
MIGRAPHX_FUNCTION(quantize_int8_options_create, (migraphx_quantize_int8_options_t* quantize_int8_options),
    GIVE(quantize_int8_options, {}))
MIGRAPHX_FUNCTION(quantize_int8_options_add_op_name,
    (migraphx_quantize_int8_options_t quantize_int8_options, const char* name),
    AT(quantize_int8_options).add_op_name(TEXT(name)))
MIGRAPHX_FUNCTION(quantize_int8_options_add_calibration_data,
    (migraphx_quantize_int8_options_t quantize_int8_options, migraphx_program_parameters_t data),
    AT(quantize_int8_options).add_calibration_data(AT(data)))
MIGRAPHX_FUNCTION(quantize_int8,
    (migraphx_program_t prog, migraphx_target_t target, migraphx_quantize_int8_options_t options),
    migraphx::quantize_int8(AT(prog), AT(target), GIVEN(options)))
MIGRAPHX_FUNCTION(quantize_fp8_options_create, (migraphx_quantize_fp8_options_t* quantize_fp8_options),
    GIVE(quantize_fp8_options, {}))
MIGRAPHX_FUNCTION(quantize_fp8_options_add_calibration_data,
    (migraphx_quantize_fp8_options_t quantize_fp8_options, migraphx_program_parameters_t data),
    AT(quantize_fp8_options).add_calibration_data(AT(data)))
MIGRAPHX_FUNCTION(quantize_fp8,
    (migraphx_program_t prog, migraphx_target_t target, migraphx_quantize_fp8_options_t options),
    migraphx::quantize_fp8(AT(prog), AT(target), GIVEN(options)))

MIGRAPHX_FUNCTION(get_onnx_operator_name_at_index, (char** out, size_t index),
    SET(out, const_cast<char*>(element(onnx_operators(), index).c_str())))
MIGRAPHX_FUNCTION(get_onnx_operators_size, (size_t* out), SET(out, onnx_operators().size()))
MIGRAPHX_FUNCTION(context_finish, (const_migraphx_context_t context), AT(context).finish())
MIGRAPHX_FUNCTION(context_get_queue, (void** out, migraphx_context_t context), SET(out, AT(context).get_queue<void*>()))

MIGRAPHX_FUNCTION(experimental_custom_op_create,
    (migraphx_experimental_custom_op_t* experimental_custom_op, void* obj, migraphx_experimental_custom_op_copy c,
     migraphx_experimental_custom_op_delete d, const char* obj_typename, const char* name),
    TEXT(obj_typename); GIVE(experimental_custom_op, c_operator(TEXT(name), obj, c, d)))
MIGRAPHX_FUNCTION(experimental_custom_op_set_compute,
    (migraphx_experimental_custom_op_t obj, migraphx_experimental_custom_op_compute input), AT(obj).computes = input)
MIGRAPHX_FUNCTION(experimental_custom_op_set_compute_shape,
    (migraphx_experimental_custom_op_t obj, migraphx_experimental_custom_op_compute_shape input), AT(obj).shapes = input)
MIGRAPHX_FUNCTION(experimental_custom_op_set_output_alias, /* results share no memory with inputs */
    (migraphx_experimental_custom_op_t obj, migraphx_experimental_custom_op_output_alias input), AT(obj); (void)input)
MIGRAPHX_FUNCTION(experimental_custom_op_set_runs_on_offload_target, /* all arguments are on the host */
    (migraphx_experimental_custom_op_t obj, migraphx_experimental_custom_op_runs_on_offload_target input),
    AT(obj); (void)input)
MIGRAPHX_FUNCTION(experimental_custom_op_register, (migraphx_experimental_custom_op_t experimental_custom_op),
    AT(experimental_custom_op).check(); migraphx::register_experimental_custom_op(AT(experimental_custom_op)))
