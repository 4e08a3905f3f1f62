// What runs a compiled program: an exported library that is linked, opened by its path, or inside of an .mxr file.
#ifndef MIGRAPHX_LIBRARY_HPP
#define MIGRAPHX_LIBRARY_HPP

#include <dlfcn.h>

#include <cstring>
#include <memory>
#include <new>
#include <string>
#include <vector>

#include "argument.hpp"
#include "options.hpp"

namespace migraphx {

/// A loaded program of a library; any number of threads may call `run` at once. The destructor closes the library.
class library_program {
public:
    /// `handle` is that of dlopen, which this closes in any case, or null; `weights` and `offset` are where the weights
    /// are, empty for where the library looks; `file` is kept until the library is closed.
    library_program(const mgx_library* library, void* handle, const file_options& given, const std::string& weights = "",
                    std::uint64_t offset = 0, std::shared_ptr<void> file = nullptr)
        : handle_(handle), file_(std::move(file))
    {
        try {
            load(library, given, weights.empty() ? given.weights() : weights, offset);
        } catch(...) {
            close();
            throw;
        }
    }
    ~library_program()
    {
        if(loaded_ != nullptr)
            library_->destroy(loaded_);
        close();
    }
    library_program(const library_program&) = delete;
    library_program& operator=(const library_program&) = delete;

    /// Open a library by its path, or as dlopen finds it.
    static std::shared_ptr<library_program> open(const char* file, const file_options& given,
                                                 const std::string& weights = "", std::uint64_t offset = 0,
                                                 std::shared_ptr<void> kept = nullptr)
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
        return std::make_shared<library_program>(get(), handle, given, weights, offset, std::move(kept));
    }

    const mgx_library& library() const { return *library_; }

    /// The results have memory of their own.
    arguments run(const std::vector<std::pair<std::string, argument>>& given) const
    {
        std::vector<mgx_tensor> inputs, outputs;
        for(const auto& entry : given)
            inputs.push_back(tensor_of(entry.first.c_str(), entry.second));
        std::size_t axes = 0;
        for(std::size_t k = 0; k < library_->output_count; k++)
            axes += library_->outputs[k].rank;
        std::vector<std::size_t> lens(axes + 1);
        const mgx_status status = library_->output_lens(loaded_, inputs.data(), inputs.size(), lens.data());
        if(status == MGX_NEEDS_VALUES)
            return compute(inputs);
        check(status);
        arguments results;
        const std::size_t* own = lens.data();
        for(std::size_t k = 0; k < library_->output_count; own += library_->outputs[k].rank, k++) {
            mgx_tensor made = library_->outputs[k];
            made.lens       = own;
            results.emplace_back(shape_of(made));
        }
        for(const auto& result : results)
            outputs.push_back(tensor_of(nullptr, result));
        check(library_->run(loaded_, inputs.data(), inputs.size(), outputs.data(), outputs.size()));
        return results;
    }

    static shape shape_of(const mgx_tensor& tensor)
    {
        if(tensor.rank == 0)
            return shape(tensor.type);
        const std::vector<std::size_t> lens(tensor.lens, tensor.lens + tensor.rank);
        dynamic_dimensions dims;
        bool open = false;
        for(std::size_t length : lens) {
            open = open || length == MGX_OPEN_LENGTH;
            dims.emplace_back(length == MGX_OPEN_LENGTH ? 0 : length, length);
        }
        return open ? shape(tensor.type, dims) : shape(tensor.type, lens);
    }

private:
    void load(const mgx_library* library, const file_options& given, const std::string& weights, std::uint64_t offset)
    {
        if(library == nullptr || library->api_version != MGX_API_VERSION)
            throw error(MGX_BAD_VERSION, "the library is not of version " + std::to_string(MGX_API_VERSION));
        library_ = library;
        mgx_options options = {};
        options.size = sizeof options;
        options.weights = weights.empty() ? nullptr : weights.c_str();
        options.weights_offset = offset;
        options.num_threads = given.num_threads();
        options.copy_weights = given.copy_weights() ? 1 : 0;
        check(library->load(&options, &loaded_));
    }
    /// Run a program whose values determine the lengths of its results.
    arguments compute(const std::vector<mgx_tensor>& inputs) const
    {
        mgx_results* made = nullptr;
        check(library_->compute(loaded_, inputs.data(), inputs.size(), &made));
        const std::unique_ptr<mgx_results, void (*)(mgx_results*)> kept(made, library_->free_results);
        arguments results;
        for(std::size_t k = 0; k < made->count; k++) {
            results.emplace_back(shape_of(made->tensors[k]));
            if(results.back().get_shape().bytes() != 0)
                std::memcpy(results.back().data(), made->tensors[k].data, results.back().get_shape().bytes());
        }
        return results;
    }
    void check(mgx_status status) const
    {
        if(status == MGX_OUT_OF_MEMORY)
            throw std::bad_alloc();
        if(status != MGX_SUCCESS)
            throw error(status, library_->error());
    }
    void close()
    {
        if(handle_ != nullptr)
            dlclose(handle_);
    }
    static mgx_tensor tensor_of(const char* name, const argument& value)
    {
        const shape& s = value.get_shape();
        if(!s.standard())
            throw error(MGX_BAD_PARAM, std::string("parameter ") + name + ": its elements must lie in row-major order");
        return {name, s.type(), s.lengths().size(), s.lengths().data(), value.data()};
    }
    const mgx_library* library_ = nullptr;
    mgx_program* loaded_ = nullptr;
    void* handle_;
    std::shared_ptr<void> file_;
};

} // namespace migraphx

#endif
