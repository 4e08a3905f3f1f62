// ONNX models.
#ifndef MIGRAPHX_ONNX_HPP
#define MIGRAPHX_ONNX_HPP

#include "program.hpp"

namespace migraphx {
namespace detail {

inline void add(request& what, const onnx_options& given)
{
    what.add("map_input_dims").raw(wire::of(given.map_input_dims));
    what.add("map_dyn_input_dims").raw(wire::of(given.map_dyn_input_dims));
    what.add("dim_params").raw(wire::of(given.dim_params));
    what.add("default_dyn_dim_value").raw(wire::of(given.default_dyn_dim));
    what.add("default_dim_value", static_cast<std::int64_t>(given.default_dim_value));
    what.add("max_loop_iterations", given.max_loop_iterations).add("limit_max_iterations", given.limit_max_iterations);
    what.add("external_data_path", given.external_data_path);
    what.add_flag("use_debug_symbols", given.use_debug_symbols);
}

inline program read_model(const request& what)
{
    const auto process = compiler::get();
    return program(process, process->ask(what));
}

} // namespace detail

/// Read a model from a file.
inline program parse_onnx(const std::string& file, const onnx_options& options = {})
{
    request what("parse_onnx");
    what.add("file", wire::path(file));
    detail::add(what, options);
    return detail::read_model(what);
}

/// Read a model from its bytes.
inline program parse_onnx_buffer(const void* data, std::size_t size, const onnx_options& options = {})
{
    request what("parse_onnx_buffer");
    what.add("data").binary(static_cast<const char*>(data), size);
    detail::add(what, options);
    return detail::read_model(what);
}

inline program parse_onnx_buffer(const std::string& bytes, const onnx_options& options = {})
{
    return parse_onnx_buffer(bytes.data(), bytes.size(), options);
}

/// Names of the operators that are supported.
inline std::vector<std::string> get_onnx_operators()
{
    std::vector<std::string> found;
    for(const auto& name : compiler::get()->ask(request("get_onnx_operators"))["names"].items)
        found.push_back(name.text);
    return found;
}

} // namespace migraphx

#endif
