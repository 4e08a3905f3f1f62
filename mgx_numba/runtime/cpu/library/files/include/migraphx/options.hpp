// Options of reading, compiling and loading, as MIGraphX's classes have them; members that its own libraries have as plain
// data can be set, too.
#ifndef MIGRAPHX_OPTIONS_HPP
#define MIGRAPHX_OPTIONS_HPP

#include <cstdint>
#include <string>
#include <unordered_map>
#include <utility>
#include <vector>

#include "argument.hpp"

namespace migraphx {

/// What a program is compiled for: "cpu", "gpu" or "ref".
class target {
public:
    explicit target(std::string name) : name_(std::move(name)) {}
    const std::string& name() const { return name_; }
    /// Arguments are always in memory of the host: a copy has the elements in row-major order.
    argument copy_to(const argument& value) const { return value.copy(); }
    argument copy_from(const argument& value) const { return value.copy(); }
    argument allocate(const shape& s) const { return argument(s); }

private:
    std::string name_;
};

namespace cpu {
class target : public migraphx::target {
public:
    target() : migraphx::target("cpu") {}
};
} // namespace cpu

namespace gpu {
class target : public migraphx::target {
public:
    target() : migraphx::target("gpu") {}
};
} // namespace gpu

namespace ref {
class target : public migraphx::target {
public:
    target() : migraphx::target("ref") {}
};
} // namespace ref

/// How a program is compiled. Arguments are always those of the host: what is compiled for a device copies them, so
/// `offload_copy` changes nothing.
struct compile_options {
    bool offload_copy = false, fast_math = true, exhaustive_tune = false;
    int device_id = 0;
    void set_offload_copy(bool value = true) { offload_copy = value; }
    void set_fast_math(bool value = true) { fast_math = value; }
    /// As MIGraphX's modes: 0 and 50 take what is estimated to be best, 100 measures; the nearest of them is taken.
    void set_compile_mode(unsigned mode) { exhaustive_tune = mode > 75; }
    void set_exhaustive_tune_flag(bool value = true) { exhaustive_tune = value; }
};

/// How an ONNX model is read.
struct onnx_options {
    std::unordered_map<std::string, std::vector<std::size_t>> map_input_dims;
    std::unordered_map<std::string, dynamic_dimensions> map_dyn_input_dims;
    std::unordered_map<std::string, dynamic_dimension> dim_params;
    dynamic_dimensions default_dyn_dim; // none or one
    std::size_t default_dim_value = 0;              // 0: dimensions without a length are open
    std::int64_t max_loop_iterations = 10, limit_max_iterations = 65535;
    std::string external_data_path;
    bool use_debug_symbols = false;

    void set_input_parameter_shape(const std::string& name, std::vector<std::size_t> lengths)
    {
        map_input_dims[name] = std::move(lengths);
    }
    void set_dyn_input_parameter_shape(const std::string& name, dynamic_dimensions dims)
    {
        map_dyn_input_dims[name] = std::move(dims);
    }
    void set_dim_param(const std::string& name, const dynamic_dimension& dim) { dim_params.insert({name, dim}); }
    void set_dim_params(const std::unordered_map<std::string, dynamic_dimension>& dims) { dim_params = dims; }
    void set_default_dim_value(unsigned value) { default_dim_value = value; }
    void set_default_dyn_dim_value(const dynamic_dimension& dim) { default_dyn_dim.assign(1, dim); }
    void set_default_loop_iterations(std::int64_t value) { max_loop_iterations = value; }
    void set_limit_loop_iterations(std::int64_t value) { limit_max_iterations = value; }
    void set_use_debug_symbols(bool value = true) { use_debug_symbols = value; }
    void set_external_data_path(std::string path) { external_data_path = std::move(path); }
};

/// How a TensorFlow model is read.
struct tf_options {
    bool is_nhwc = true;
    unsigned batch_size = 1;
    std::unordered_map<std::string, std::vector<std::size_t>> map_input_dims;
    std::vector<std::string> output_node_names;

    void set_nhwc(bool value = true) { is_nhwc = value; }
    void set_input_parameter_shape(const std::string& name, std::vector<std::size_t> lengths)
    {
        map_input_dims[name] = std::move(lengths);
    }
    void set_default_dim_value(unsigned value) { batch_size = value; }
    void set_output_names(std::vector<std::string> names) { output_node_names = std::move(names); }
};

/// How a file is loaded or saved. All but format and device is this package's: see mgx_options, and docs/cpp.md.
class file_options {
public:
    std::string format = "msgpack";
    int device_id = 0;

    void set_file_format(std::string name) { format = std::move(name); }
    /// Load: a library's weights, in place of those beside it.
    void set_weights(std::string path) { weights_ = std::move(path); }
    /// Load: threads of a run.
    void set_num_threads(int threads) { num_threads_ = threads; }
    /// Load: weights in large pages in place of those of the file.
    void set_copy_weights(bool copy = true) { copy_weights_ = copy; }
    /// Load: run machine code of an .mxr file; whoever wrote the file can then do anything in this process.
    void set_trust_objects(bool trust = true) { trust_objects_ = trust; }
    /// Save: put the library of a program that is compiled for the CPU into an .mxr file.
    void set_embed_library(bool embed = true) { embed_library_ = embed; }

    const std::string& weights() const { return weights_; }
    int num_threads() const { return num_threads_; }
    bool copy_weights() const { return copy_weights_; }
    bool trust_objects() const { return trust_objects_; }
    bool embed_library() const { return embed_library_; }

private:
    std::string weights_;
    int num_threads_ = 0;
    bool copy_weights_ = false, trust_objects_ = false, embed_library_ = false;
};

} // namespace migraphx

#endif
