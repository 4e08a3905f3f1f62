// Every class of MIGraphX's C++ interface as its users write it: `surface FOLDER`, which has net.onnx and graph.pb.
#include <migraphx/migraphx.hpp>

#include <cstring>
#include <iostream>

#include "support.hpp"

namespace {

// out = inputs, with 42 as the first element.
struct marking : migraphx::experimental_custom_op_base {
    std::string name() const override { return "marking"; }
    migraphx::argument compute(migraphx::context context, migraphx::shape, migraphx::arguments inputs) const override
    {
        context.finish();
        reinterpret_cast<float*>(inputs[0].data())[0] = 42;
        return inputs[0];
    }
    bool runs_on_offload_target() const override { return false; }
    std::vector<std::size_t> output_alias(migraphx::shapes) const override { return {0}; }
    migraphx::shape compute_shape(migraphx::shapes inputs) const override { return inputs[0]; }
};

std::string folder;

std::string in_folder(const char* name) { return folder + "/" + name; }

migraphx::program parsed(const migraphx::onnx_options& options)
{
    return migraphx::parse_onnx(in_folder("net.onnx").c_str(), options);
}

void shapes()
{
    const migraphx::dynamic_dimension range{1, 4, {2, 4}}, six{6, 6};
    const migraphx::optimals best{2, 4};
    require(range == migraphx::dynamic_dimension{1, 4, best} && six.is_fixed() && !range.is_fixed(), "ranges");
    const migraphx::dynamic_dimensions dims(range, six);
    const migraphx::shape open{migraphx_shape_float_type, dims};
    require(open.dynamic() && open.dyn_dims().size() == 2 && open.dyn_dims()[0] == range, "an open shape");
    const migraphx::shape scalar{migraphx_shape_float_type}, rows{migraphx_shape_float_type, {2, 3}};
    const migraphx::shape columns{migraphx_shape_float_type, {2, 3}, {1, 2}};
    require(rows.lengths()[1] == 3 && rows.strides()[0] == 3 && rows.type() == migraphx_shape_float_type, "a shape");
    require(rows.elements() == 6 && rows.bytes() == 24 && scalar.elements() == 1, "elements and bytes");
    require(rows.standard() && !columns.standard() && columns.index(1) == 2 && rows != columns, "strides");
    const auto drawn = migraphx::argument::generate(rows, 3);
    require(drawn == migraphx::argument::generate(rows, 3), "a seed");
    require(drawn != migraphx::argument::generate(rows, 4), "another seed");
    require(drawn.as_vector<float>()[5] == drawn.data<float>()[5], "elements of an argument");
    migraphx::argument own(rows);
    std::memset(own.data(), 0, rows.bytes());
    migraphx::argument::save_argument(own, in_folder("argument"));
    require(migraphx::argument::load_argument(in_folder("argument").c_str()) == own, "an argument is saved and loaded");
    const migraphx::shapes both{scalar, rows};
    require(both.size() == 2 && both[1] == rows, "shapes");
}

void reading()
{
    const migraphx::dynamic_dimension range{1, 4, {2}};
    migraphx::onnx_options of_inputs, of_symbols, of_all, lengths;
    of_inputs.set_dyn_input_parameter_shape("x", {range, {6, 6}});
    of_symbols.set_dim_param("n", range);
    of_all.set_default_dyn_dim_value(range);
    lengths.set_default_dim_value(3);
    lengths.set_default_loop_iterations(3);
    lengths.set_limit_loop_iterations(5);
    lengths.set_external_data_path(folder);
    lengths.set_use_debug_symbols();
    for(const auto& options : {of_inputs, of_symbols, of_all})
        require(parsed(options).get_parameter_shapes()["x"].dyn_dims()[0] == range, "a range of an input");
    require(parsed(lengths).get_parameter_shapes()["x"].lengths()[0] == 3, "a default length");
    migraphx::tf_options graph;
    graph.set_nhwc();
    graph.set_nhwc(false);
    graph.set_default_dim_value(2);
    graph.set_output_names({"twice"});
    graph.set_input_parameter_shape("x", {2, 3});
    const auto program = migraphx::parse_tf(in_folder("graph.pb").c_str(), graph);
    require(program.get_output_shapes()[0].lengths()[1] == 3, "a graph of TensorFlow");
    require(migraphx::get_onnx_operators().size() > 100, "names of operators");
}

void running()
{
    migraphx::onnx_options options;
    options.set_input_parameter_shape("x", {4, 6});
    auto program = parsed(options);
    migraphx::compile_options compiling;
    compiling.set_offload_copy();
    compiling.set_fast_math(false);
    compiling.set_exhaustive_tune_flag(false);
    program.compile(migraphx::target("cpu"), compiling);
    migraphx::program_parameters parameters;
    const auto shapes = program.get_parameter_shapes();
    for(const auto& name : shapes.names())
        parameters.add(name, migraphx::argument::generate(shapes[name]));
    const auto results = program.eval(parameters);
    for(const auto& result : results)
        require(result.as_vector<float>().size() == 20, "a result");
    require(program.run_async(parameters, static_cast<void*>(nullptr))[0] == results[0], "run_async");
    auto context = program.experimental_get_context();
    context.finish();
    require(context.get_queue<void*>() == nullptr, "the CPU has no queue");
    migraphx::file_options json;
    json.set_file_format("json");
    migraphx::save(program, in_folder("program.json").c_str(), json);
    require(migraphx::load(in_folder("program.json").c_str(), json) == program, "a program is saved and loaded");
    migraphx::quantize_op_names dot;
    dot.add("dot");
    auto half = parsed(options), brain = parsed(options), bytes = parsed(options), floats = parsed(options);
    migraphx::quantize_fp16(half, dot);
    migraphx::quantize_bf16(brain, dot);
    migraphx::quantize_int8_options of_bytes;
    of_bytes.add_op_name("dot");
    of_bytes.add_op_name("convolution");
    of_bytes.add_calibration_data(parameters);
    migraphx::quantize_int8(bytes, migraphx::target("ref"), of_bytes);
    migraphx::quantize_fp8_options of_floats;
    of_floats.add_calibration_data(parameters);
    migraphx::quantize_fp8(floats, migraphx::target("ref"), of_floats);
    for(auto* quantized : {&half, &brain, &bytes, &floats}) {
        quantized->compile(migraphx::target("ref"));
        const auto found = quantized->eval(parameters)[0].as_vector<float>(), wanted = results[0].as_vector<float>();
        for(std::size_t k = 0; k < found.size(); k++)
            require(std::abs(found[k] - wanted[k]) < 0.1f, "a quantised program");
    }
}

void building()
{
    const migraphx::shape shape{migraphx_shape_float_type, {2, 3}};
    std::vector<float> ones(6, 1.0f);
    migraphx::register_experimental_custom_op(marking());
    migraphx::program program;
    auto main_module = program.get_main_module();
    auto x = main_module.add_parameter("x", shape);
    auto literal = main_module.add_literal(shape, ones.data());
    main_module.add_allocation(shape);
    auto sum = main_module.add_instruction(migraphx::operation("add"), {x, literal});
    auto marked = main_module.add_instruction(migraphx::operation("marking"), {sum});
    const auto axes = migraphx::operation("transpose", "{permutation: [%d, %d]}", 1, 0);
    auto turned = main_module.add_instruction(axes, {marked});
    const migraphx::instructions arguments{turned};
    main_module.add_return({main_module.add_instruction(migraphx::operation("reduce_sum", "{axes: [0]}"), arguments)});
    main_module.print();
    program.sort();
    const migraphx::modules modules{program.create_module("other")};
    program.compile(migraphx::target("ref"));
    const migraphx::program_parameters parameters{{"x", migraphx::argument(shape, ones.data())}};
    std::string names;
    const auto results = program.run_trace(parameters, [&](const migraphx::trace_info& info) {
        names += info.get_name() + (info.get_result().get_shape().elements() != 0 ? " " : "");
    });
    require(results[0].as_vector<float>() == std::vector<float>({46, 6}), "a custom operator, traced");
    require(names.find("ref::marking ") != std::string::npos, "its name");
}

} // namespace

int main(int, char** arguments)
{
    folder = arguments[1];
    shapes();
    reading();
    running();
    building();
    std::cout << "all hold\n";
}
