// MIGraphX's C++ names over a library that mgx_numba exported: what running a compiled program needs.
//
// A program is one of a library that is linked, `migraphx::program p(resnet50_library());` with resnet50.h, or of one that is
// opened, `migraphx::load("lib/libresnet50.so")`. Errors are `migraphx::error`, a
// `std::runtime_error`, but for `std::bad_alloc`.
#ifndef MIGRAPHX_MIGRAPHX_HPP
#define MIGRAPHX_MIGRAPHX_HPP

#include <dlfcn.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <initializer_list>
#include <iostream>
#include <memory>
#include <new>
#include <numeric>
#include <random>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include "../mgx_numba.h"

using migraphx_status = mgx_status;
using migraphx_shape_datatype_t = mgx_type;
constexpr mgx_type migraphx_shape_bool_type = MGX_BOOL;
constexpr mgx_type migraphx_shape_half_type = MGX_HALF;
constexpr mgx_type migraphx_shape_float_type = MGX_FLOAT;
constexpr mgx_type migraphx_shape_double_type = MGX_DOUBLE;
constexpr mgx_type migraphx_shape_uint8_type = MGX_UINT8;
constexpr mgx_type migraphx_shape_int8_type = MGX_INT8;
constexpr mgx_type migraphx_shape_uint16_type = MGX_UINT16;
constexpr mgx_type migraphx_shape_int16_type = MGX_INT16;
constexpr mgx_type migraphx_shape_int32_type = MGX_INT32;
constexpr mgx_type migraphx_shape_int64_type = MGX_INT64;
constexpr mgx_type migraphx_shape_uint32_type = MGX_UINT32;
constexpr mgx_type migraphx_shape_uint64_type = MGX_UINT64;
constexpr mgx_type migraphx_shape_fp8e4m3fnuz_type = MGX_FP8E4M3FNUZ;
constexpr mgx_type migraphx_shape_fp8e4m3fn_type = MGX_FP8E4M3FN;
constexpr mgx_type migraphx_shape_fp8e5m2_type = MGX_FP8E5M2;
constexpr mgx_type migraphx_shape_bf16_type = MGX_BF16;
constexpr mgx_type migraphx_shape_fp8e5m2fnuz_type = MGX_FP8E5M2FNUZ;

namespace migraphx {

/// What a library refused, with its status.
class error : public std::runtime_error {
public:
    error(mgx_status status, const std::string& what) : std::runtime_error(what), status_(status) {}
    mgx_status status() const noexcept { return status_; }

private:
    mgx_status status_;
};

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

/// Type, lengths and strides (in elements). Without lengths it is a scalar: {1}, {0}.
class shape {
public:
    shape() : shape(MGX_FLOAT) {}
    explicit shape(mgx_type type) : type_(type), lens_{1}, strides_{0} { check_type(); }
    shape(mgx_type type, std::vector<std::size_t> lengths) : type_(type), lens_(std::move(lengths)), strides_(lens_.size())
    {
        check_type();
        std::size_t stride = 1;
        for(std::size_t axis = lens_.size(); axis-- > 0; stride *= lens_[axis])
            strides_[axis] = stride;
    }
    shape(mgx_type type, std::initializer_list<std::size_t> lengths) : shape(type, std::vector<std::size_t>(lengths)) {}
    shape(mgx_type type, std::vector<std::size_t> lengths, std::vector<std::size_t> strides)
        : type_(type), lens_(std::move(lengths)), strides_(std::move(strides))
    {
        check_type();
        if(lens_.size() != strides_.size())
            throw error(MGX_BAD_PARAM, "shape: as many strides as lengths are expected");
    }

    const std::vector<std::size_t>& lengths() const { return lens_; }
    const std::vector<std::size_t>& strides() const { return strides_; }
    mgx_type type() const { return type_; }
    std::size_t elements() const
    {
        return std::accumulate(lens_.begin(), lens_.end(), std::size_t{1}, std::multiplies<std::size_t>());
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
        std::size_t stride = 1;
        for(std::size_t axis = lens_.size(); axis-- > 0; stride *= lens_[axis])
            if(lens_[axis] != 1 && strides_[axis] != stride)
                return elements() == 0;
        return true;
    }
    /// False: an exported program has lengths.
    bool dynamic() const { return false; }
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
        return a.type_ == b.type_ && a.lens_ == b.lens_ && a.strides_ == b.strides_;
    }
    friend bool operator!=(const shape& a, const shape& b) { return !(a == b); }

private:
    void check_type() const
    {
        if(mgx_type_size(type_) == 0)
            throw error(MGX_BAD_PARAM, "shape: unknown element type " + std::to_string(static_cast<int>(type_)));
    }
    mgx_type type_;
    std::vector<std::size_t> lens_, strides_;
};

/// A tensor: a shape over memory of its own, at a multiple of 64 bytes and not set, or of the caller's, who keeps it
/// alive. Copies share the memory.
class argument {
public:
    argument() = default;
    explicit argument(shape s) : shape_(std::move(s)), own_(allocate(shape_.bytes())), data_(own_.get()) {}
    argument(shape s, const void* data) : shape_(std::move(s)), data_(static_cast<char*>(const_cast<void*>(data))) {}

    const shape& get_shape() const { return shape_; }
    char* data() const { return data_; }
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
using shapes = std::vector<shape>;

/// Shapes by name, in the order of the parameters.
class program_parameter_shapes {
public:
    std::size_t size() const { return entries_.size(); }
    std::vector<const char*> names() const
    {
        std::vector<const char*> found;
        for(const auto& entry : entries_)
            found.push_back(entry.first);
        return found;
    }
    const shape& operator[](const char* name) const
    {
        for(const auto& entry : entries_)
            if(std::strcmp(entry.first, name) == 0)
                return entry.second;
        throw error(MGX_BAD_PARAM, std::string("Parameter not found: ") + name);
    }

private:
    friend class program;
    std::vector<std::pair<const char*, shape>> entries_;
};

/// Arguments by name.
class program_parameters {
public:
    program_parameters() = default;
    program_parameters(std::initializer_list<std::pair<std::string, argument>> given) : entries_(given) {}
    void add(const char* name, const argument& value)
    {
        for(auto& entry : entries_)
            if(entry.first == name) {
                entry.second = value;
                return;
            }
        entries_.emplace_back(name, value);
    }

private:
    friend class program;
    std::vector<std::pair<std::string, argument>> entries_;
};

/// How a library's program is loaded; see mgx_options.
class load_options {
public:
    void set_weights(std::string path) { weights_ = std::move(path); }
    void set_num_threads(int threads) { num_threads_ = threads; }
    void set_copy_weights(bool copy = true) { copy_weights_ = copy; }

private:
    friend class program;
    std::string weights_;
    int num_threads_ = 0;
    bool copy_weights_ = false;
};

/// A compiled program. Copies share it; any number of threads may call `eval` at once.
class program {
public:
    program() = default;
    explicit program(const mgx_library* library, const load_options& options = {}) : program(library, options, nullptr) {}

    program_parameter_shapes get_parameter_shapes() const
    {
        program_parameter_shapes found;
        for(std::size_t k = 0; k < library().parameter_count; k++)
            found.entries_.emplace_back(library().parameters[k].name, shape_of(library().parameters[k]));
        return found;
    }
    shapes get_output_shapes() const
    {
        shapes found;
        for(std::size_t k = 0; k < library().output_count; k++)
            found.push_back(shape_of(library().outputs[k]));
        return found;
    }
    /// Names of the results, in order; MIGraphX itself has none.
    std::vector<const char*> get_output_names() const
    {
        std::vector<const char*> found;
        for(std::size_t k = 0; k < library().output_count; k++)
            found.push_back(library().outputs[k].name);
        return found;
    }
    /// Run; the results have memory of their own.
    arguments eval(const program_parameters& given) const
    {
        std::vector<mgx_tensor> inputs, outputs;
        for(const auto& entry : given.entries_)
            inputs.push_back(tensor_of(entry.first.c_str(), entry.second));
        arguments results;
        for(const auto& s : get_output_shapes())
            results.emplace_back(s);
        for(const auto& result : results)
            outputs.push_back(tensor_of(nullptr, result));
        check(library(), library().run(get(), inputs.data(), inputs.size(), outputs.data(), outputs.size()));
        return results;
    }
    /// As `eval`: the results are complete on return, whatever the stream still has to do.
    template <class Stream>
    arguments run_async(const program_parameters& given, Stream*) const
    {
        return eval(given);
    }
    /// Names and shapes.
    void print(std::ostream& out = std::cout) const
    {
        for(std::size_t k = 0; k < library().parameter_count; k++)
            print(out, "parameter ", library().parameters[k]);
        for(std::size_t k = 0; k < library().output_count; k++)
            print(out, "output ", library().outputs[k]);
    }
    friend bool operator==(const program& a, const program& b) { return a.state_ == b.state_; }
    friend bool operator!=(const program& a, const program& b) { return !(a == b); }

private:
    friend program load(const char* file, const load_options& options);

    struct state {
        const mgx_library* library = nullptr;
        mgx_program* loaded = nullptr;
        void* handle = nullptr;
        ~state()
        {
            if(loaded != nullptr)
                library->destroy(loaded);
            if(handle != nullptr)
                dlclose(handle);
        }
    };

    program(const mgx_library* library, const load_options& given, void* handle) : state_(std::make_shared<state>())
    {
        state_->handle = handle;
        if(library == nullptr || library->api_version != MGX_API_VERSION)
            throw error(MGX_BAD_VERSION, "the library is not of version " + std::to_string(MGX_API_VERSION));
        state_->library = library;
        mgx_options options = {};
        options.size = sizeof options;
        options.weights = given.weights_.empty() ? nullptr : given.weights_.c_str();
        options.num_threads = given.num_threads_;
        options.copy_weights = given.copy_weights_ ? 1 : 0;
        check(*library, library->load(&options, &state_->loaded));
    }
    static void check(const mgx_library& library, mgx_status status)
    {
        if(status == MGX_OUT_OF_MEMORY)
            throw std::bad_alloc();
        if(status != MGX_SUCCESS)
            throw error(status, library.error());
    }
    static shape shape_of(const mgx_tensor& tensor)
    {
        if(tensor.rank == 0)
            return shape(tensor.type);
        return shape(tensor.type, std::vector<std::size_t>(tensor.lens, tensor.lens + tensor.rank));
    }
    static mgx_tensor tensor_of(const char* name, const argument& value)
    {
        const shape& s = value.get_shape();
        if(!s.standard())
            throw error(MGX_BAD_PARAM, std::string("parameter ") + name + ": its elements must lie in row-major order");
        return {name, s.type(), s.lengths().size(), s.lengths().data(), value.data()};
    }
    static void print(std::ostream& out, const char* kind, const mgx_tensor& tensor)
    {
        out << kind << tensor.name << ": type " << static_cast<int>(tensor.type) << ", {";
        for(std::size_t axis = 0; axis < tensor.rank; axis++)
            out << (axis == 0 ? "" : ", ") << tensor.lens[axis];
        out << "}\n";
    }
    const mgx_library& library() const
    {
        if(state_ == nullptr)
            throw error(MGX_BAD_PARAM, "the program is empty: load one");
        return *state_->library;
    }
    mgx_program* get() const { return state_->loaded; }

    std::shared_ptr<state> state_;
};

/// Open a library and load its program; the last copy of the program closes it.
inline program load(const char* file, const load_options& options = {})
{
    void* handle = dlopen(file, RTLD_NOW | RTLD_LOCAL);
    if(handle == nullptr)
        throw error(MGX_BAD_PARAM, dlerror());
    using function = const mgx_library* (*)();
    const auto get = reinterpret_cast<function>(dlsym(handle, "mgx_get_library"));
    if(get == nullptr) {
        dlclose(handle);
        throw error(MGX_BAD_PARAM, std::string(file) + ": it is no library that mgx_numba exported");
    }
    return program(get(), options, handle);
}

inline program load(const std::string& file, const load_options& options = {}) { return load(file.c_str(), options); }

} // namespace migraphx

#endif
