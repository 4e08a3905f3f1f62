// Operators that the program defines. The compiler's process calls them, with copies of arguments.
#ifndef MIGRAPHX_CUSTOM_OP_HPP
#define MIGRAPHX_CUSTOM_OP_HPP

#include "program.hpp"

namespace migraphx {

/// An operator of the C++ program, for `operation(name)` after `register_experimental_custom_op`.
class experimental_custom_op_base {
public:
    virtual ~experimental_custom_op_base() = default;
    virtual std::string name() const = 0;
    /// The result, with the shape `output`; it may be one of the inputs, in memory that may be written.
    virtual argument compute(context ctx, shape output, arguments inputs) const = 0;
    virtual shape compute_shape(shapes inputs) const = 0;
    /// MIGraphX's, and not asked for: results and inputs never share memory, and lie on the host.
    virtual std::vector<std::size_t> output_alias(shapes) const { return {}; }
    virtual bool runs_on_offload_target() const { return false; }

protected:
    experimental_custom_op_base() = default;
    experimental_custom_op_base(const experimental_custom_op_base&) = default;
    experimental_custom_op_base& operator=(const experimental_custom_op_base&) = default;
};

/// Let programs have an operator. Its functions are called from the thread that compiles or runs a program.
inline void register_experimental_custom_op(std::shared_ptr<const experimental_custom_op_base> op)
{
    const std::string name = op->name();
    compiler::register_operator(name, [op, name](const msgpack::value& call, request& reply) {
        shapes given;
        for(const auto& input : call["inputs"].items)
            given.push_back(wire::to_shape(input));
        const shape output = op->compute_shape(given);
        if(call["call"].text == "compute_shape") {
            reply.add("shape").raw(wire::of(output));
            return;
        }
        arguments inputs;
        for(const auto& input : call["inputs"].items)
            inputs.push_back(wire::to_argument(input));
        const argument result = op->compute(context(), output, inputs);
        if(result.get_shape().type() != output.type() || result.get_shape().lengths() != output.lengths())
            throw error(MGX_BAD_PARAM, "the result has another type or other lengths than compute_shape gives");
        reply.add("result").raw(wire::of(result));
    });
}

/// The operator is copied.
template <class T>
void register_experimental_custom_op(const T& op)
{
    static_assert(std::is_base_of<experimental_custom_op_base, T>::value, "derive from experimental_custom_op_base");
    register_experimental_custom_op(std::shared_ptr<const experimental_custom_op_base>(std::make_shared<T>(op)));
}

} // namespace migraphx

#endif
