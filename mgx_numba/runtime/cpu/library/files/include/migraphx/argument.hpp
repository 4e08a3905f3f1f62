// Tensors: arguments, and literals, which are constants.
#ifndef MIGRAPHX_ARGUMENT_HPP
#define MIGRAPHX_ARGUMENT_HPP

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <new>
#include <random>

#include "shape.hpp"

namespace migraphx {

/// A tensor: a shape over memory of its own, at a multiple of 64 bytes and not set, or of the caller's, who keeps it
/// alive. Copies share the memory.
class argument {
public:
    argument() = default;
    explicit argument(shape s) : shape_(std::move(s)), own_(allocate(shape_.bytes())), data_(own_.get()) {}
    argument(shape s, const void* data) : shape_(std::move(s)), data_(static_cast<char*>(const_cast<void*>(data))) {}

    /// The memory is shared with `data`.
    template <class T>
    argument(shape s, std::shared_ptr<T> data)
        : shape_(std::move(s)), own_(data, reinterpret_cast<char*>(data.get())), data_(own_.get())
    {
    }

    const shape& get_shape() const { return shape_; }
    char* data() const { return data_; }
    /// The elements in row-major order, in memory of their own.
    argument copy() const
    {
        const std::size_t size = mgx_type_size(shape_.type());
        if(data_ == nullptr && shape_.elements() != 0)
            throw error(MGX_BAD_PARAM, "argument: data is NULL");
        argument made(shape_.standard() || shape_.scalar() ? shape_ : shape(shape_.type(), shape_.lengths()));
        for(std::size_t k = 0; k < shape_.elements(); k++)
            std::memcpy(made.data_ + made.shape_.index(k) * size, data_ + shape_.index(k) * size, size);
        return made;
    }
    /// Write a file, of the form that Python's `argument.save` writes; read one. In argument_file.hpp.
    static void save_argument(const argument& value, const std::string& file);
    static argument load_argument(const std::string& file);
    /// The elements as a C++ type of the same size.
    template <class T>
    T* data() const
    {
        if(sizeof(T) != mgx_type_size(shape_.type()))
            throw error(MGX_BAD_PARAM, "argument: data<T>() with a type of another size than its elements have");
        return reinterpret_cast<T*>(data_);
    }
    /// A copy of the elements in row-major order.
    template <class T>
    std::vector<T> as_vector() const
    {
        const T* elements = data<T>();
        std::vector<T> result(shape_.elements());
        for(std::size_t k = 0; k < result.size(); k++)
            result[k] = elements[shape_.index(k)];
        return result;
    }
    /// Numbers from -1 to 1 of floats and doubles, small ones of other types; the same for the same seed.
    static argument generate(shape s, std::size_t seed = 0)
    {
        argument made(std::move(s));
        const mgx_type type = made.shape_.type();
        const std::size_t size = mgx_type_size(type);
        std::mt19937_64 random(seed);
        if(made.data_ != nullptr)
            std::memset(made.data_, 0, made.shape_.bytes());
        for(std::size_t at = 0; at < made.shape_.bytes(); at += size) {
            const std::uint64_t bits = random();
            const double unit = static_cast<double>(bits >> 11) / 4503599627370496.0 - 1.0;
            if(type == MGX_FLOAT)
                store(made.data_ + at, static_cast<float>(unit));
            else if(type == MGX_DOUBLE)
                store(made.data_ + at, unit);
            else
                made.data_[at] = static_cast<char>(bits & 1); // little-endian: 0 or 1, the least above 0 of a float
        }
        return made;
    }
    friend bool operator==(const argument& a, const argument& b)
    {
        if(a.shape_ != b.shape_)
            return false;
        if(a.data_ == b.data_)
            return true;
        const std::size_t size = mgx_type_size(a.shape_.type());
        for(std::size_t k = 0; k < a.shape_.elements(); k++) {
            const std::size_t at = a.shape_.index(k) * size;
            if(std::memcmp(a.data_ + at, b.data_ + at, size) != 0)
                return false;
        }
        return true;
    }
    friend bool operator!=(const argument& a, const argument& b) { return !(a == b); }

private:
    template <class T>
    static void store(char* at, T value)
    {
        std::memcpy(at, &value, sizeof value);
    }
    static std::shared_ptr<char> allocate(std::size_t bytes)
    {
        void* memory = nullptr;
        if(posix_memalign(&memory, 64, std::max<std::size_t>(bytes, 1)) != 0)
            throw std::bad_alloc();
        return std::shared_ptr<char>(static_cast<char*>(memory), std::free);
    }
    shape shape_;
    std::shared_ptr<char> own_;
    char* data_ = nullptr;
};

using arguments = std::vector<argument>;

/// As `argument::generate`.
inline argument generate_argument(shape s, std::size_t seed = 0) { return argument::generate(std::move(s), seed); }

namespace detail {

inline std::uint32_t bits_of(float value)
{
    std::uint32_t bits;
    std::memcpy(&bits, &value, sizeof bits);
    return bits;
}

/// IEEE 754's binary16, rounded to nearest, ties to even.
inline std::uint16_t half_bits(float value)
{
    const std::uint32_t bits = bits_of(value), sign = bits >> 16 & 0x8000u, rest = bits & 0x7fffffffu;
    if(rest > 0x7f800000u)
        return static_cast<std::uint16_t>(sign | 0x7e00u); // a NaN
    if(rest >= 0x477ff000u)
        return static_cast<std::uint16_t>(sign | 0x7c00u); // from 65520 on
    if(rest < 0x38800000u) // below 2^-14 they are multiples of 2^-24
        return static_cast<std::uint16_t>(sign | static_cast<std::uint32_t>(std::nearbyint(std::fabs(value) * 16777216.0f)));
    return static_cast<std::uint16_t>(sign | (rest - 0x38000000u + 0xfffu + (rest >> 13 & 1u)) >> 13);
}

/// The upper half of a float, rounded to nearest, ties to even.
inline std::uint16_t bf16_bits(float value)
{
    const std::uint32_t bits = bits_of(value);
    if((bits & 0x7fffffffu) > 0x7f800000u)
        return static_cast<std::uint16_t>(bits >> 16 | 0x40u); // a NaN
    return static_cast<std::uint16_t>((bits + 0x7fffu + (bits >> 16 & 1u)) >> 16);
}

} // namespace detail

/// A constant: a copy of elements that are given in row-major order, as the shape's type or as one that is converted to it.
/// Those of types that C++ lacks are also taken as their bits, and those of 8 bits as nothing else. Elements behind a
/// pointer to char are the bytes of the shape's type, in row-major order.
class literal {
public:
    literal(const shape& s, const char* bytes) : value_(argument(s.standard() || s.scalar() ? s : rows(s), bytes).copy()) {}
    template <class T>
    literal(const shape& s, const T* elements) : value_(s)
    {
        store(elements);
    }
    template <class T>
    literal(const shape& s, const std::vector<T>& elements) : value_(s)
    {
        store(counted(s, elements.size(), elements.data()));
    }
    template <class T>
    literal(const shape& s, std::initializer_list<T> elements) : value_(s)
    {
        store(counted(s, elements.size(), elements.begin()));
    }
    explicit literal(argument value) : value_(std::move(value)) {}

    const shape& get_shape() const { return value_.get_shape(); }
    const char* data() const { return value_.data(); }

private:
    static shape rows(const shape& s) { return shape(s.type(), s.lengths()); }
    template <class T>
    static const T* counted(const shape& s, std::size_t count, const T* elements)
    {
        if(count != s.elements())
            throw error(MGX_BAD_PARAM, "literal: " + std::to_string(count) + " elements are given, its shape has "
                                           + std::to_string(s.elements()));
        return elements;
    }
    template <class T>
    void store(const T* elements)
    {
        switch(get_shape().type()) {
        case MGX_BOOL: return put<bool>(elements);
        case MGX_FLOAT: return put<float>(elements);
        case MGX_DOUBLE: return put<double>(elements);
        case MGX_UINT8: return put<std::uint8_t>(elements);
        case MGX_INT8: return put<std::int8_t>(elements);
        case MGX_UINT16: return put<std::uint16_t>(elements);
        case MGX_INT16: return put<std::int16_t>(elements);
        case MGX_INT32: return put<std::int32_t>(elements);
        case MGX_INT64: return put<std::int64_t>(elements);
        case MGX_UINT32: return put<std::uint32_t>(elements);
        case MGX_UINT64: return put<std::uint64_t>(elements);
        default: break;
        }
        if(sizeof(T) == mgx_type_size(get_shape().type()))
            return put<T>(elements);
        if(get_shape().type() == MGX_HALF)
            return put<std::uint16_t>(elements, detail::half_bits);
        if(get_shape().type() == MGX_BF16)
            return put<std::uint16_t>(elements, detail::bf16_bits);
        throw error(MGX_BAD_PARAM, "literal: elements of its type are given as their bits, in as many bytes");
    }
    template <class To, class T, class Convert>
    void put(const T* elements, Convert convert)
    {
        for(std::size_t k = 0; k < get_shape().elements(); k++) {
            const To element = convert(static_cast<float>(elements[k]));
            std::memcpy(value_.data() + get_shape().index(k) * sizeof element, &element, sizeof element);
        }
    }
    template <class To, class T>
    void put(const T* elements)
    {
        for(std::size_t k = 0; k < get_shape().elements(); k++) {
            const To element = static_cast<To>(elements[k]);
            std::memcpy(value_.data() + get_shape().index(k) * sizeof element, &element, sizeof element);
        }
    }
    argument value_;
};

/// A constant of what `argument::generate` gives.
inline literal generate_literal(shape s, std::size_t seed = 0) { return literal(argument::generate(std::move(s), seed)); }

} // namespace migraphx

#endif
