// MIGraphX's C++ interface over the compiler's process: `compiler FOLDER`, which has net.onnx, open.onnx and rows.onnx. It
// prints a line for each thing that is refused, and writes results as NAME.bin.
#include <signal.h>

#include <fstream>
#include <limits>
#include <migraphx/cpu/target.hpp>
#include <migraphx/generate.hpp>
#include <migraphx/load_save.hpp>
#include <migraphx/make_op.hpp>
#include <migraphx/migraphx.h>
#include <migraphx/migraphx.hpp>
#include <migraphx/onnx.hpp>
#include <thread>

#include "support.hpp"

static std::string folder;

static void write(const std::string& name, const migraphx::argument& value)
{
    std::ofstream(folder + "/" + name + ".bin", std::ios::binary)
        .write(value.data(), static_cast<std::streamsize>(value.get_shape().bytes()));
}

static migraphx::program generated()
{
#include "generated.inc"
    return p;
}

static void built()
{
    const migraphx::program p = generated();
    std::ofstream(folder + "/generated.txt") << p;
    migraphx::program again = generated(), copy = again;
    require(p == again && copy == again && p != migraphx::parse_onnx(folder + "/net.onnx"), "programs are compared");
    migraphx::module main = p.get_main_module();
    refusal("operator", [&] { main.add_instruction(migraphx::make_op("nothing")); });
    refusal("attribute", [&] { main.add_instruction(migraphx::make_op("flatten", {{"axes", 1}})); });
    refusal("json", [&] { main.add_instruction(migraphx::make_json_op("flatten", "{axis:}")); });
    refusal("foreign", [&] { main.add_return({again.get_main_module().add_parameter("other", migraphx::shape())}); });
    refusal("elements", [] { migraphx::literal(migraphx::shape(migraphx::shape::float_type, {3}), {1.0, 2.0}); });

    migraphx::program q; // MIGraphX's public interface
    migraphx::module m = q.get_main_module();
    const migraphx::shape s{migraphx::shape::float_type, {2, 3}};
    const auto x = m.add_parameter("x", s);
    const auto y = m.add_instruction(migraphx::operation("leaky_relu", "{alpha: %f}", 0.25), {x});
    const auto most = m.add_literal(migraphx::literal(migraphx::shape(migraphx::shape::float_type), {2}));
    const auto wide = m.add_instruction(migraphx::make_op("multibroadcast", {{"out_lens", {2, 3}}}), most);
    const auto limited = m.add_instruction(migraphx::make_op("min"), y, wide);
    const auto padded = m.add_instruction(
        migraphx::make_op("pad", {{"pads", {0, 1, 0, 0}}, {"value", -std::numeric_limits<double>::infinity()}}), limited);
    m.add_return({padded, x});
    q.compile(migraphx::target("cpu"));
    require(q.is_library(), "the CPU runs a library");
    q.experimental_get_context().finish();
    require(q.experimental_get_context().get_queue<void*>() == nullptr, "contexts have no streams");
    std::vector<float> values{-4, -2, 0, 1, 2, 3};
    const auto results = q.eval({{"x", migraphx::argument(s, values.data())}});
    const float least = -std::numeric_limits<float>::infinity();
    require(results[0].as_vector<float>() == std::vector<float>{least, -1, -0.5, 0, least, 1, 2, 2}, "padded");
    require(results[1].as_vector<float>() == values, "x");
    require(q.get_output_shapes()[0] == migraphx::shape(migraphx::shape::float_type, {2, 4}), "shape");
}

static void parsed()
{
    migraphx::onnx_options options;
    options.set_input_parameter_shape("x", {4, 6});
    migraphx::program p = migraphx::parse_onnx(folder + "/open.onnx", options);
    const migraphx::shape s = p.get_parameter_shapes()["x"];
    require(s.lengths() == std::vector<std::size_t>{4, 6}, "lengths that were given");
    const auto x = migraphx::generate_argument(s, 3);
    write("x", x);
    migraphx::quantize_fp16(p);
    p.compile(migraphx::cpu::target{});
    write("fp16", p.eval({{"x", x}})[0]);

    migraphx::program q = migraphx::parse_onnx(folder + "/open.onnx", options);
    migraphx::quantize_int8_options calibration;
    calibration.add_calibration_data({{"x", x}});
    migraphx::quantize_int8(q, migraphx::cpu::target{}, calibration);
    q.compile(migraphx::cpu::target{});
    write("int8", q.eval({{"x", x}})[0]);
    q.compile(migraphx::target("ref"));
    require(!q.is_library(), "other targets run in the compiler's process");
    require(q.eval({{"x", x}})[0].get_shape().lengths() == std::vector<std::size_t>{4, 5}, "there, too, it runs");

    migraphx::onnx_options open;
    open.set_dyn_input_parameter_shape("x", {{1, 8}, {6, 6}});
    migraphx::program r = migraphx::parse_onnx(folder + "/open.onnx", open);
    require(r.get_parameter_shapes()["x"].dynamic(), "open lengths");
    require(r.get_parameter_shapes()["x"].dyn_dims()[0] == migraphx::dynamic_dimension(1, 8), "a range");
    require(migraphx::dynamic_dimension{1, 8, migraphx::optimals{2}} != migraphx::dynamic_dimension(1, 8), "optimals");
    r.compile(migraphx::cpu::target{});
    require(!r.is_library(), "lengths that a run tells");
    write("open", r.eval({{"x", x}})[0]);
    r.reshape({{"x", {4, 6}}});
    require(r.is_library(), "lengths are known, and it is compiled again");
    write("reshaped", r.eval({{"x", x}})[0]);
    refusal("batch", [&] { r.eval({{"x", migraphx::argument(migraphx::shape(migraphx::shape::float_type, {5, 6}))}}); });

    migraphx::program rows = migraphx::parse_onnx(folder + "/rows.onnx");
    rows.compile(migraphx::cpu::target{});
    const migraphx::shape square(migraphx::shape::float_type, {2, 2});
    std::vector<float> matrix{4, 2, 3, 5}; // in columns
    const migraphx::argument turned(migraphx::shape(migraphx::shape::float_type, {2, 2}, {1, 2}), matrix.data());
    std::vector<std::thread> callers;
    std::vector<float> found(4);
    for(std::size_t k = 0; k < found.size(); k++)
        callers.emplace_back([&, k] { found[k] = rows.eval({{"x", turned}})[0].as_vector<float>()[0]; });
    for(auto& caller : callers)
        caller.join();
    require(!rows.is_library() && found == std::vector<float>(4, 2), "what has no kernel runs, too");
    refusal("missing", [&] { rows.eval({{"y", turned}}); });
    refusal("shape", [&] { rows.eval({{"x", migraphx::argument(migraphx::shape(square.type(), {2, 3}))}}); });
}

static void kept()
{
    const migraphx::program p = migraphx::parse_onnx(folder + "/net.onnx");
    refusal("not compiled", [&] {
        migraphx::file_options options;
        options.set_embed_library();
        migraphx::save(p, folder + "/none.mxr", options);
    });
    p.compile(migraphx::target("cpu"));
    const auto x = migraphx::generate_argument(p.get_parameter_shapes()["x"], 5);
    const auto wanted = p.eval({{"x", x}});
    migraphx::save(p, folder + "/net.mxr");
    const migraphx::program again = migraphx::load(folder + "/net.mxr");
    require(again.is_library() && again.eval({{"x", x}}) == wanted && again == p, "what was saved is loaded");
    migraphx::file_options json;
    json.set_file_format("json");
    migraphx::save(p, folder + "/net.json", json);
    require(migraphx::load(folder + "/net.json", json) == p, "in JSON, too");
    refusal("file", [] { migraphx::load(folder + "/net.onnx"); });
    refusal("no file", [] { migraphx::parse_onnx(folder + "/nowhere.onnx"); });
    refusal("no target", [&] { p.compile(migraphx::target("fpga")); });
    refusal("empty", [] { migraphx::program().eval({}); });
}

struct scaled_op final : migraphx::experimental_custom_op_base {
    std::string name() const override { return "scaled_op"; }
    migraphx::argument compute(migraphx::context, migraphx::shape, migraphx::arguments inputs) const override
    {
        const auto from = inputs[0].as_vector<float>();
        std::transform(from.begin(), from.end(), inputs[1].data<float>(), [](float x) { return 3 * x; });
        return inputs[1];
    }
    migraphx::shape compute_shape(migraphx::shapes inputs) const override
    {
        if(inputs.size() != 2)
            throw std::runtime_error("two inputs are needed");
        return inputs.back();
    }
    std::vector<std::size_t> output_alias(migraphx::shapes) const override { return {1}; }
    bool runs_on_offload_target() const override { return true; }
};

struct wrong_op final : migraphx::experimental_custom_op_base {
    std::string name() const override { return "wrong_op"; }
    migraphx::argument compute(migraphx::context, migraphx::shape, migraphx::arguments inputs) const override
    {
        return migraphx::argument(migraphx::shape(inputs[0].get_shape().type(), {1, 1}));
    }
    migraphx::shape compute_shape(migraphx::shapes inputs) const override { return inputs.front(); }
};

static void customised()
{
    const scaled_op scaled;
    migraphx::register_experimental_custom_op(scaled);
    migraphx::register_experimental_custom_op(wrong_op());
    migraphx::program p;
    require(!p.is_compiled(), "an empty program");
    migraphx::module m = p.get_main_module();
    const migraphx::shape s{migraphx_shape_float_type, {2, 2}};
    const auto x = m.add_parameter("x", s);
    const auto absolute = m.add_instruction(migraphx::operation("abs"), {x});
    const auto room = m.add_allocation(s);
    refusal("custom shape", [&] { m.add_instruction(migraphx::operation("scaled_op"), {absolute}); });
    m.add_return({m.add_instruction(migraphx::operation("scaled_op"), {absolute, room})});
    std::vector<float> values{1, -2, 3, 4};
    const migraphx::program_parameters given{{"x", migraphx::argument(s, values.data())}};
    const std::vector<float> wanted{3, 6, 9, 12};
    for(const char* name : {"ref", "cpu"}) {
        p.compile(migraphx::target(name));
        require(p.is_compiled() && !p.is_library(), "the compiler's process calls the operator");
        require(p.eval(given)[0].as_vector<float>() == wanted, "a custom operator");
        std::vector<float> seen;
        std::size_t last = 0;
        const auto results = p.run_trace(given, [&](const migraphx::trace_info& info) {
            require(info.get_index() > last, "numbers of instructions");
            last = info.get_index();
            if(info.get_name().find("abs") != std::string::npos)
                seen = info.get_result().as_vector<float>();
            std::ostringstream graph; // what is called may ask, too
            p.print_graph(graph, true);
            require(graph.str().find("digraph") == 0, "a graph is printed");
        });
        require(seen == std::vector<float>{1, 2, 3, 4} && results[0].as_vector<float>() == wanted, "a traced run");
    }
    refusal("trace", [&] { p.run_trace(given, [](const migraphx::trace_info&) { throw 0; }); });
    migraphx::program q;
    m = q.get_main_module();
    m.add_return({m.add_instruction(migraphx::operation("wrong_op"), {m.add_parameter("x", s)})});
    refusal("custom result", [&] { q.compile(migraphx::target("ref")), q.eval(given); });
    struct named_add final : migraphx::experimental_custom_op_base {
        std::string name() const override { return "add"; }
        migraphx::argument compute(migraphx::context, migraphx::shape, migraphx::arguments a) const override { return a[0]; }
        migraphx::shape compute_shape(migraphx::shapes inputs) const override { return inputs[0]; }
    };
    refusal("custom name", [&] { migraphx::register_experimental_custom_op(named_add()); });
}

static void small_things()
{
    const migraphx::dynamic_dimensions dims(migraphx::dynamic_dimension{1, 4}, migraphx::dynamic_dimension{3, 3});
    require(dims.size() == 2 && migraphx::shape(migraphx::shape::float_type, dims).dynamic(), "ranges");
    const migraphx::shape rows(migraphx::shape::float_type, {2, 3}), turned(rows.type(), {2, 3}, {1, 2});
    const migraphx::shape wide(rows.type(), {2, 3}, {0, 1}), apart(rows.type(), {2, 3}, {4, 1});
    require(rows.packed() && turned.packed() && !wide.packed() && !apart.packed(), "packed");
    require(!rows.transposed() && turned.transposed() && wide.broadcasted() && !wide.scalar(), "strides");
    require(migraphx::shape(rows.type()).scalar() && rows.ndim() == 2, "a scalar");
    const auto kept = std::make_shared<std::vector<float>>(6, 1.5f);
    const migraphx::argument shared(rows, std::shared_ptr<float>(kept, kept->data()));
    require(kept.use_count() == 2 && shared.data<float>() == kept->data(), "shared memory");
    const migraphx::gpu::target gpu;
    const migraphx::argument there = gpu.copy_to(migraphx::argument(wide, kept->data()));
    require(gpu.copy_from(there) == migraphx::gpu::from_gpu(shared) && there.data() != shared.data(), "copies");
    require(gpu.allocate(rows).get_shape() == rows && migraphx::gpu::allocate_gpu(rows).data() != nullptr, "memory");
    migraphx::gpu::gpu_sync();
    const migraphx::argument odd(migraphx::shape(migraphx::shape::float_type, {2, 2}, {1, 2}), kept->data());
    for(const auto& value : {shared, odd, migraphx::argument(migraphx::shape(rows.type(), {0, 3}))}) {
        migraphx::argument::save_argument(value, folder + "/a.msgpack");
        require(migraphx::argument::load_argument(folder + "/a.msgpack") == value, "a tensor is saved and loaded");
    }
    refusal("no tensor", [] { migraphx::load_argument(folder + "/net.mxr"); });
    const std::vector<float> numbers{1, 2};
    const migraphx::shape pair(rows.type(), {2});
    const migraphx::literal bytes(pair, reinterpret_cast<const char*>(numbers.data())), chars(pair, std::vector<char>{1, 2});
    require(std::memcmp(bytes.data(), numbers.data(), 8) == 0 && std::memcmp(chars.data(), numbers.data(), 8) == 0,
            "elements as bytes, and as small numbers");
    refusal("overflow", [&] { migraphx::shape(rows.type(), {SIZE_MAX / 8, 4}); });
    std::size_t sum = 0;
    for(const auto& dim : migraphx::range(dims.begin(), dims.end()))
        sum += dim.max;
    require(sum == 7, "a range of iterators");
    migraphx::compile_options options;
    options.exhaustive_tune = true;
    options.set_exhaustive_tune_flag(false);
    require(!options.exhaustive_tune, "one option under two names");
    migraphx::api::compile_options& same = options;
    same.set_compile_mode(migraphx_compile_mode_max);
    require(options.exhaustive_tune, "a mode that measures");
    migraphx::onnx_options reading;
    reading.set_use_debug_symbols();
    std::ostringstream text;
    text << migraphx::parse_onnx(folder + "/net.onnx", reading);
    require(text.str().find("# first") != std::string::npos, "names of nodes");
}

// A child has no part in its parent's requests.
static void forked()
{
    migraphx::program p = migraphx::parse_onnx(folder + "/net.onnx");
    std::cout.flush();
    const pid_t child = fork();
    if(child == 0) {
        refusal("forked", [&] { p.print(); });
        p = migraphx::program(); // gone, which the parent must not notice
        std::cout.flush();
        _exit(0);
    }
    int status = 1;
    waitpid(child, &status, 0);
    require(status == 0 && p.get_parameter_shapes().size() == 1, "the parent's program is there");
}

// The last: the process ends.
static void ended()
{
    migraphx::program p = migraphx::parse_onnx(folder + "/net.onnx");
    pid_t child = 0;
    std::ifstream("/proc/self/task/" + std::to_string(getpid()) + "/children") >> child;
    require(child > 0 && kill(child, SIGKILL) == 0, "it is there");
    refusal("killed", [&] { p.print(); });
    refusal("gone", [&] { p.print(); });
    require(migraphx::parse_onnx(folder + "/net.onnx").get_parameter_shapes().size() == 1, "another one is started");
    migraphx::program custom;
    const auto x = custom.get_main_module().add_parameter("x", migraphx::shape(migraphx::shape::float_type, {2}));
    custom.get_main_module().add_instruction(migraphx::operation("scaled_op"), {x, x}); // which knows the operators
}

int main(int, char** argv)
{
    try {
        folder = argv[1];
        built();
        parsed();
        kept();
        customised();
        small_things();
        forked();
        ended();
        require(migraphx::get_onnx_operators().size() > 100, "operators are listed");
        std::cout << "all hold\n";
    } catch(const std::exception& error) {
        std::cout << error.what() << "\n";
        return 1;
    }
}
