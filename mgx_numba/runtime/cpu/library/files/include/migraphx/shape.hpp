// Element types and shapes.
#ifndef MIGRAPHX_SHAPE_HPP
#define MIGRAPHX_SHAPE_HPP

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <initializer_list>
#include <numeric>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "error.hpp"

namespace migraphx {

/// The element type of a C++ type; others (half, bf16, fp8) are named by hand.
template <class T>
struct element_type;
template <> struct element_type<bool> { static constexpr mgx_type value = MGX_BOOL; };
template <> struct element_type<float> { static constexpr mgx_type value = MGX_FLOAT; };
template <> struct element_type<double> { static constexpr mgx_type value = MGX_DOUBLE; };
template <> struct element_type<std::uint8_t> { static constexpr mgx_type value = MGX_UINT8; };
template <> struct element_type<std::int8_t> { static constexpr mgx_type value = MGX_INT8; };
template <> struct element_type<std::uint16_t> { static constexpr mgx_type value = MGX_UINT16; };
template <> struct element_type<std::int16_t> { static constexpr mgx_type value = MGX_INT16; };
template <> struct element_type<std::uint32_t> { static constexpr mgx_type value = MGX_UINT32; };
template <> struct element_type<std::int32_t> { static constexpr mgx_type value = MGX_INT32; };
template <> struct element_type<std::uint64_t> { static constexpr mgx_type value = MGX_UINT64; };
template <> struct element_type<std::int64_t> { static constexpr mgx_type value = MGX_INT64; };

/// Lengths of a range that are worth tuning for.
using optimals = std::set<std::size_t>;

/// A range of lengths, and those of it that are worth tuning for.
struct dynamic_dimension {
    std::size_t min, max;
    std::set<std::size_t> optimals;
    dynamic_dimension(std::size_t least, std::size_t most, std::set<std::size_t> best = {})
        : min(least), max(most), optimals(std::move(best))
    {
        if(min > max)
            throw error(MGX_BAD_PARAM,
                        "dynamic dimension: min " + std::to_string(min) + " is above max " + std::to_string(max));
    }
    bool is_fixed() const { return min == max; }
    friend bool operator==(const dynamic_dimension& a, const dynamic_dimension& b)
    {
        return a.min == b.min && a.max == b.max && a.optimals == b.optimals;
    }
    friend bool operator!=(const dynamic_dimension& a, const dynamic_dimension& b) { return !(a == b); }
};

/// Ranges of all lengths of a shape.
class dynamic_dimensions : public std::vector<dynamic_dimension> {
public:
    using std::vector<dynamic_dimension>::vector;
    dynamic_dimensions() = default;
    template <class... Others>
    explicit dynamic_dimensions(const dynamic_dimension& first, const Others&... others)
        : std::vector<dynamic_dimension>{first, others...}
    {
    }
};

/// The names of element types; a template, since members of one need no definition elsewhere.
template <class>
struct shape_types {
    using type_t = mgx_type;
#define MGX_CONSTANT(name, number) static constexpr mgx_type name = number;
    MGX_TYPES(MGX_CONSTANT)
#undef MGX_CONSTANT
};
#define MGX_CONSTANT(name, number) template <class T> constexpr mgx_type shape_types<T>::name;
MGX_TYPES(MGX_CONSTANT)
#undef MGX_CONSTANT

/// Type, lengths and strides (in elements). Without lengths it is a scalar: {1}, {0}.
class shape : public shape_types<void> {
public:
    using dynamic_dimension = migraphx::dynamic_dimension;

    shape() : shape(MGX_FLOAT) {}
    explicit shape(mgx_type type) : type_(type), lens_{1}, strides_{0} { check(); }
    shape(mgx_type type, std::vector<std::size_t> lengths) : type_(type), lens_(std::move(lengths)), strides_(lens_.size())
    {
        std::size_t stride = 1;
        for(std::size_t axis = lens_.size(); axis-- > 0; stride *= lens_[axis])
            strides_[axis] = stride;
        check();
    }
    shape(mgx_type type, std::initializer_list<std::size_t> lengths) : shape(type, std::vector<std::size_t>(lengths)) {}
    shape(mgx_type type, std::vector<std::size_t> lengths, std::vector<std::size_t> strides)
        : type_(type), lens_(std::move(lengths)), strides_(std::move(strides))
    {
        check();
    }

    shape(mgx_type type, dynamic_dimensions dims) : type_(type), dims_(std::move(dims)) { check(); }

    const std::vector<std::size_t>& lengths() const
    {
        if(dynamic())
            throw error(MGX_BAD_PARAM,
                        "shape: its lengths are open; dyn_dims() has their ranges, and onnx_options.set_default_dim_value(1) "
                        "gives what a model leaves open the length 1, as MIGraphX does");
        return lens_;
    }
    const std::vector<std::size_t>& lens() const { return lengths(); }
    const std::vector<std::size_t>& strides() const
    {
        lengths();
        return strides_;
    }
    /// The ranges of the lengths; of a shape that has lengths, each from a length to itself.
    dynamic_dimensions dyn_dims() const
    {
        dynamic_dimensions found = dims_;
        for(const std::size_t length : lens_)
            found.emplace_back(length, length);
        return found;
    }
    mgx_type type() const { return type_; }
    std::size_t elements() const
    {
        return std::accumulate(lengths().begin(), lengths().end(), std::size_t{1}, std::multiplies<std::size_t>());
    }
    /// Bytes from the first element to the end of the last.
    std::size_t bytes() const
    {
        if(elements() == 0)
            return 0;
        std::size_t last = 0;
        for(std::size_t axis = 0; axis < lens_.size(); axis++)
            last += (lens_[axis] - 1) * strides_[axis];
        return (last + 1) * mgx_type_size(type_);
    }
    /// Whether elements lie in row-major order without gaps.
    bool standard() const
    {
        lengths();
        std::size_t stride = 1;
        for(std::size_t axis = lens_.size(); axis-- > 0; stride *= lens_[axis])
            if(lens_[axis] != 1 && strides_[axis] != stride)
                return elements() == 0;
        return true;
    }
    std::size_t ndim() const { return dynamic() ? dims_.size() : lens_.size(); }
    /// Whether each place from the first element to the last holds one element.
    bool packed() const { return !dynamic() && elements() * mgx_type_size(type_) == bytes(); }
    /// Whether some stride is 0.
    bool broadcasted() const { return std::find(strides_.begin(), strides_.end(), 0u) != strides_.end(); }
    /// Whether all strides are 0.
    bool scalar() const
    {
        return !dynamic() && std::all_of(strides_.begin(), strides_.end(), [](std::size_t s) { return s == 0; });
    }
    /// Whether strides that are not 0 do not descend from the first axis to the last.
    bool transposed() const
    {
        std::size_t before = SIZE_MAX;
        for(const std::size_t stride : strides_) {
            if(stride > before)
                return true;
            before = stride == 0 ? before : stride;
        }
        return false;
    }
    /// Whether a length is open: it is a range.
    bool dynamic() const { return !dims_.empty(); }
    /// Where the i-th element in row-major order lies, in elements.
    std::size_t index(std::size_t i) const
    {
        std::size_t at = 0;
        for(std::size_t axis = lens_.size(); axis-- > 0; i /= lens_[axis])
            at += i % lens_[axis] * strides_[axis];
        return at;
    }
    friend bool operator==(const shape& a, const shape& b)
    {
        return a.type_ == b.type_ && a.lens_ == b.lens_ && a.strides_ == b.strides_ && a.dims_ == b.dims_;
    }
    friend bool operator!=(const shape& a, const shape& b) { return !(a == b); }

private:
    void check() const
    {
        const std::size_t size = mgx_type_size(type_);
        std::size_t bytes = size;
        if(size == 0)
            throw error(MGX_BAD_PARAM, "shape: unknown element type " + std::to_string(static_cast<int>(type_)));
        if(lens_.size() != strides_.size())
            throw error(MGX_BAD_PARAM, "shape: as many strides as lengths are expected");
        if(std::find(lens_.begin(), lens_.end(), 0u) != lens_.end())
            return;
        for(std::size_t axis = 0; axis < lens_.size(); axis++) {
            std::size_t step = 0;
            if(__builtin_mul_overflow(bytes, lens_[axis], &bytes) || bytes > PTRDIFF_MAX
               || __builtin_mul_overflow(lens_[axis], strides_[axis], &step) || step > PTRDIFF_MAX / size / lens_.size())
                throw error(MGX_BAD_PARAM, "shape: no memory can have as many elements");
        }
    }
    mgx_type type_;
    std::vector<std::size_t> lens_, strides_;
    dynamic_dimensions dims_;
};

using shapes = std::vector<shape>;

} // namespace migraphx

#endif
