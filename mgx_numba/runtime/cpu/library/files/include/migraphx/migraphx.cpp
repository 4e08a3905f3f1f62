// The library migraphx_c: MIGraphX's C interface over the C++ interface beside it. functions.h has the functions.
#include "migraphx.h"

#include <cstdarg>
#include <list>

#include "migraphx.hpp"

#define AT(handle) at(handle, #handle)
#define GIVE(out, ...) \
    give(out, #out, [&]() -> typename std::remove_reference<decltype((*out)->value)>::type { return __VA_ARGS__; })
#define SET(out, value_) set(out, #out, [&] { return value_; })
#define SPAN(out, size, value_) span(required(out, #out), required(size, #size), value_)
#define TEXT(text) std::string(required(text, #text))
#define LIST(pointer, size) list(pointer, size, #pointer)
#define BYTES(pointer, size) static_cast<const void*>(required(pointer, #pointer)), size
#define GIVEN(options) (options == nullptr ? decltype(options->value)() : options->value)

namespace {

migraphx::error bad(const std::string& why) { return {MGX_BAD_PARAM, why}; }

struct unknown_target : migraphx::error {
    using migraphx::error::error;
};

template <class T>
T* required(T* pointer, const char* name)
{
    if(pointer == nullptr)
        throw bad(std::string(name) + " is NULL");
    return pointer;
}

template <class Handle>
auto at(Handle* handle, const char* name) -> decltype((handle->value))
{
    return required(handle, name)->value;
}

template <class Handle, class Make>
void give(Handle** out, const char* name, Make make)
{
    required(out, name);
    *out = new Handle(make());
}

template <class T, class Make>
void set(T* out, const char* name, Make make)
{
    required(out, name);
    *out = make();
}

void span(const std::size_t** out, std::size_t* size, const std::vector<std::size_t>& numbers)
{
    *out = numbers.data();
    *size = numbers.size();
}

template <class T>
std::vector<T> list(const T* pointer, std::size_t size, const char* name)
{
    return size == 0 ? std::vector<T>() : std::vector<T>(required(pointer, name), pointer + size);
}

template <class T>
T& element(std::vector<T>& of, std::size_t index)
{
    if(index >= of.size())
        throw bad("index " + std::to_string(index) + " of " + std::to_string(of.size()) + " elements");
    return of[index];
}

template <class Handle, class T>
std::vector<Handle> wrapped(const std::vector<T>& values)
{
    std::vector<Handle> made;
    for(const auto& value : values)
        made.emplace_back(value);
    return made;
}

// The handles' contents: of an array of handles.
template <class Handle>
auto members(const std::vector<Handle*>& handles)
    -> std::vector<typename std::remove_const<typename std::remove_reference<decltype(handles[0]->value)>::type>::type>
{
    decltype(members(handles)) found;
    for(const auto handle : handles)
        found.push_back(at(handle, "an element"));
    return found;
}

template <class Handle>
std::vector<typename std::remove_const<Handle>::type> values(const std::vector<Handle*>& handles)
{
    std::vector<typename std::remove_const<Handle>::type> found;
    for(const auto handle : handles)
        found.push_back(*required(handle, "an element"));
    return found;
}

std::vector<std::string> texts(const std::vector<const char*>& given)
{
    std::vector<std::string> found;
    for(const auto text : given)
        found.emplace_back(required(text, "a name"));
    return found;
}

const migraphx::argument& filled(const migraphx::argument& value)
{
    if(value.data() == nullptr && value.get_shape().bytes() != 0)
        throw bad("an argument's data is NULL");
    return value;
}

std::size_t place(const migraphx::shape& s, std::size_t index)
{
    if(index >= s.elements())
        throw bad("index " + std::to_string(index) + " of " + std::to_string(s.elements()) + " elements");
    return s.index(index);
}

migraphx::target known_target(const std::string& name)
{
    if(name != "cpu" && name != "gpu" && name != "ref")
        throw unknown_target(MGX_BAD_PARAM, "unknown target " + name + "; known: cpu, gpu, ref");
    return migraphx::target(name);
}

std::vector<std::string>& onnx_operators()
{
    static std::vector<std::string> names = migraphx::get_onnx_operators();
    return names;
}

void copy_text(const std::string& text, char* out, std::size_t size)
{
    if(size == 0)
        throw bad("out_size is 0");
    const std::size_t count = std::min(text.size(), size - 1);
    std::memcpy(required(out, "out"), text.data(), count);
    out[count] = '\0';
    if(count < text.size())
        throw bad("out_size is " + std::to_string(size) + ", " + text + " needs " + std::to_string(text.size() + 1));
}

std::string printed(const char* format, std::va_list values)
{
    if(format == nullptr)
        return "";
    std::va_list again;
    va_copy(again, values);
    const int size = std::vsnprintf(nullptr, 0, format, again);
    va_end(again);
    std::string text(static_cast<std::size_t>(std::max(size, 0)) + 1, '\0');
    std::vsnprintf(&text[0], text.size(), format, values);
    text.pop_back();
    return text;
}

} // namespace

// An operator whose functions are C's.
class c_operator : public migraphx::experimental_custom_op_base {
public:
    c_operator(std::string name, void* given, migraphx_experimental_custom_op_copy copy,
               migraphx_experimental_custom_op_delete destroy)
        : name_(std::move(name))
    {
        void* copied = nullptr;
        if(required(copy, "c")(&copied, required(given, "obj")) != migraphx_status_success)
            throw bad("obj cannot be copied");
        object_ = std::shared_ptr<void>(copied, required(destroy, "d"));
    }
    std::string name() const override { return name_; }
    migraphx::argument compute(migraphx::context, migraphx::shape output, migraphx::arguments inputs) const override;
    migraphx::shape compute_shape(migraphx::shapes inputs) const override;
    void check() const
    {
        if(computes == nullptr || shapes == nullptr)
            throw bad("operator " + name_ + ": compute or compute_shape is not set");
    }

    migraphx_experimental_custom_op_compute computes = nullptr;
    migraphx_experimental_custom_op_compute_shape shapes = nullptr;

private:
    template <class Function>
    static void call(Function function)
    {
        char message[256] = "";
        const migraphx_status status = function(message);
        message[sizeof message - 1] = '\0';
        if(status != migraphx_status_success)
            throw bad(*message != '\0' ? message : "it gave the status " + std::to_string(static_cast<int>(status)));
    }
    std::string name_;
    std::shared_ptr<void> object_;
};

#define HANDLE(name, type) \
    struct migraphx_##name { \
        type value; \
        explicit migraphx_##name(type given) : value(std::move(given)) {} \
    };
HANDLE(optimals, std::set<std::size_t>)
HANDLE(dynamic_dimension, migraphx::dynamic_dimension)
HANDLE(dynamic_dimensions, std::vector<migraphx_dynamic_dimension>)
HANDLE(shape, migraphx::shape)
HANDLE(target, migraphx::target)
using named_shapes = std::vector<std::pair<std::string, migraphx_shape>>;
HANDLE(program_parameter_shapes, named_shapes)
HANDLE(program_parameters, migraphx::program_parameters)
HANDLE(shapes, std::vector<migraphx_shape>)
HANDLE(instruction, migraphx::instruction)
HANDLE(instructions, migraphx::instructions)
HANDLE(module, migraphx::module)
HANDLE(modules, migraphx::modules)
HANDLE(context, migraphx::context)
HANDLE(operation, migraphx::operation)
HANDLE(onnx_options, migraphx::onnx_options)
HANDLE(file_options, migraphx::file_options)
HANDLE(compile_options, migraphx::compile_options)
HANDLE(tf_options, migraphx::tf_options)
HANDLE(quantize_op_names, migraphx::quantize_op_names)
HANDLE(quantize_int8_options, migraphx::quantize_int8_options)
HANDLE(quantize_fp8_options, migraphx::quantize_fp8_options)
HANDLE(experimental_custom_op, c_operator)

struct migraphx_argument {
    migraphx::argument value;
    migraphx_shape shape;
    explicit migraphx_argument(migraphx::argument given) : value(std::move(given)), shape(value.get_shape()) {}
};
HANDLE(arguments, std::vector<migraphx_argument>)

struct migraphx_trace_info {
    migraphx::trace_info value;
    migraphx_argument result;
    explicit migraphx_trace_info(migraphx::trace_info given) : value(std::move(given)), result(value.get_result()) {}
};

struct migraphx_program {
    migraphx::program value;
    std::list<migraphx_module> modules; // what functions gave
    explicit migraphx_program(migraphx::program given) : value(std::move(given)) {}
    migraphx_module_t keep(const migraphx::module& given)
    {
        modules.emplace_back(given);
        return &modules.back();
    }
};

namespace {

migraphx_context the_context{migraphx::context()};

migraphx::dynamic_dimensions ranges(const std::vector<migraphx_dynamic_dimension>& given)
{
    migraphx::dynamic_dimensions found;
    for(const auto& dim : given)
        found.push_back(dim.value);
    return found;
}

named_shapes entries(const migraphx::program_parameter_shapes& given)
{
    named_shapes found;
    for(const auto& entry : given)
        found.emplace_back(entry.first, migraphx_shape(entry.second));
    return found;
}

migraphx_shape& named(named_shapes& shapes, const std::string& name)
{
    for(auto& entry : shapes)
        if(entry.first == name)
            return entry.second;
    throw bad("Parameter not found: " + name);
}

migraphx::arguments traced(const migraphx::program& program, const migraphx::program_parameters& params,
                           migraphx_trace_callback_t callback, void* data)
{
    required(callback, "callback");
    return program.run_trace(params, [&](const migraphx::trace_info& info) {
        migraphx_trace_info handle(info);
        const migraphx_status status = callback(&handle, data);
        if(status != migraphx_status_success)
            throw bad("the callback gave the status " + std::to_string(static_cast<int>(status)));
    });
}

std::string& last_error()
{
    static thread_local std::string message;
    return message;
}

migraphx_status failed(const char* function, const char* why, migraphx_status status) noexcept
{
    try {
        last_error() = std::string(function) + ": " + why;
        std::fprintf(stderr, "MIGraphX Error: %s\n", last_error().c_str());
    } catch(...) { // no memory for the message
    }
    return status;
}

template <class Function>
migraphx_status guarded(const char* name, Function function) noexcept
{
    try {
        function();
        return migraphx_status_success;
    } catch(const unknown_target& wrong) {
        return failed(name, wrong.what(), migraphx_status_unknown_target);
    } catch(const migraphx::error& wrong) {
        const bool parameter = wrong.status() == MGX_BAD_PARAM;
        return failed(name, wrong.what(), parameter ? migraphx_status_bad_param : migraphx_status_unknown_error);
    } catch(const std::bad_alloc&) {
        return failed(name, "not enough memory", migraphx_status_unknown_error);
    } catch(const std::exception& wrong) {
        return failed(name, wrong.what(), migraphx_status_unknown_error);
    } catch(...) {
        return failed(name, "an exception that is no std::exception", migraphx_status_unknown_error);
    }
}

} // namespace

migraphx::argument c_operator::compute(migraphx::context, migraphx::shape output, migraphx::arguments inputs) const
{
    migraphx_argument out{migraphx::argument()};
    migraphx_shape like(std::move(output));
    migraphx_arguments given(wrapped<migraphx_argument>(inputs));
    call([&](char* message) { return computes(&out, object_.get(), message, 256, &the_context, &like, &given); });
    return filled(out.value);
}

migraphx::shape c_operator::compute_shape(migraphx::shapes inputs) const
{
    migraphx_shape out{migraphx::shape()};
    migraphx_shapes given(wrapped<migraphx_shape>(inputs));
    call([&](char* message) { return shapes(&out, object_.get(), message, 256, &given); });
    return out.value;
}

const char* migraphx_last_error(void) { return last_error().c_str(); }

#define MGX_HANDLE(name) \
    migraphx_status migraphx_##name##_destroy(migraphx_##name##_t handle) \
    { \
        return guarded("migraphx_" #name "_destroy", [&] { delete handle; }); \
    } \
    migraphx_status migraphx_##name##_assign_to(migraphx_##name##_t output, const_migraphx_##name##_t input) \
    { \
        return guarded("migraphx_" #name "_assign_to", [&] { *required(output, "output") = *required(input, "input"); }); \
    }
MIGRAPHX_HANDLES(MGX_HANDLE)

#define MIGRAPHX_FUNCTION(name, parameters, ...) \
    migraphx_status migraphx_##name parameters \
    { \
        return guarded("migraphx_" #name, [&] { __VA_ARGS__; }); \
    }
#define MIGRAPHX_PRINTF_FUNCTION(name, parameters, last, ...) \
    migraphx_status migraphx_##name parameters \
    { \
        std::va_list list; \
        va_start(list, last); \
        const migraphx_status status = guarded("migraphx_" #name, [&] { \
            const std::string written = printed(last, list); \
            __VA_ARGS__; \
        }); \
        va_end(list); \
        return status; \
    }
#include "functions.h"
