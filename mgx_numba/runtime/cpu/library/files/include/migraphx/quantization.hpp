// Lower precision, of programs that are not compiled yet.
#ifndef MIGRAPHX_QUANTIZATION_HPP
#define MIGRAPHX_QUANTIZATION_HPP

#include "program.hpp"

namespace migraphx {

/// Names of operators.
class quantize_op_names {
public:
    void add(const std::string& name) { names_.push_back(name); }
    const std::vector<std::string>& names() const { return names_; }

private:
    std::vector<std::string> names_;
};

/// Batches of inputs, from which ranges are taken.
class quantize_fp8_options {
public:
    void add_calibration_data(const program_parameters& inputs) { batches_.push_back(inputs); }
    const std::vector<program_parameters>& batches() const { return batches_; }

private:
    std::vector<program_parameters> batches_;
};

/// Batches of inputs, and names of the operators that are quantised: all that can be, without any.
class quantize_int8_options : public quantize_fp8_options {
public:
    void add_op_name(const std::string& name) { names_.add(name); }
    const std::vector<std::string>& names() const { return names_.names(); }

private:
    quantize_op_names names_;
};

namespace detail {

inline void quantize(const program& p, const std::string& kind, const std::vector<std::string>& names,
                     const target& t, const std::vector<program_parameters>& batches)
{
    request what = p.about("quantize");
    what.add("kind", kind).add("target", t.name());
    what.add("names").raw(wire::of(names));
    msgpack::writer& list = what.add("batches").array(batches.size());
    for(const auto& batch : batches)
        list.raw(wire::of(batch));
    p.change(what);
}

} // namespace detail

/// Compute in float16; without names, wherever that keeps accuracy.
inline void quantize_fp16(const program& p, const quantize_op_names& names = {})
{
    detail::quantize(p, "fp16", names.names(), cpu::target(), {});
}

/// Compute in bfloat16.
inline void quantize_bf16(const program& p, const quantize_op_names& names = {})
{
    detail::quantize(p, "bf16", names.names(), cpu::target(), {});
}

/// Contractions in 8-bit integers, with ranges from runs on a target.
inline void quantize_int8(const program& p, const target& t, const quantize_int8_options& options)
{
    detail::quantize(p, "int8", options.names(), t, options.batches());
}

inline void quantize_int8(const program& p, const target& t, const std::vector<parameter_map>& calibration)
{
    detail::quantize(p, "int8", {}, t, {calibration.begin(), calibration.end()});
}

/// Contractions in float8.
inline void quantize_fp8(const program& p, const target& t, const quantize_fp8_options& options)
{
    detail::quantize(p, "fp8", {}, t, options.batches());
}

} // namespace migraphx

#endif
