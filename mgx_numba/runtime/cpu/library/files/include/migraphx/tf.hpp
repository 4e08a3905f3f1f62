// Frozen TensorFlow models.
#ifndef MIGRAPHX_TF_HPP
#define MIGRAPHX_TF_HPP

#include "onnx.hpp"

namespace migraphx {
namespace detail {

inline void add(request& what, const tf_options& given)
{
    what.add_flag("is_nhwc", given.is_nhwc).add("batch_size", given.batch_size);
    what.add("map_input_dims").raw(wire::of(given.map_input_dims));
    what.add("output_names").raw(wire::of(given.output_node_names));
}

} // namespace detail

/// Read a model from a file or a SavedModel's folder.
inline program parse_tf(const std::string& file, const tf_options& options = {})
{
    request what("parse_tf");
    what.add("file", wire::path(file));
    detail::add(what, options);
    return detail::read_model(what);
}

/// Read a model from its bytes.
inline program parse_tf_buffer(const void* data, std::size_t size, const tf_options& options = {})
{
    request what("parse_tf_buffer");
    what.add("data").binary(static_cast<const char*>(data), size);
    detail::add(what, options);
    return detail::read_model(what);
}

} // namespace migraphx

#endif
