// Programs: read, built, quantised and compiled by the compiler's process, run in this one.
#ifndef MIGRAPHX_PROGRAM_HPP
#define MIGRAPHX_PROGRAM_HPP

#include "argument_file.hpp"
#include "module.hpp"
#include "mxr.hpp"

namespace migraphx {

/// Names and shapes of parameters and results.
struct signature {
    std::vector<std::pair<std::string, shape>> parameters, outputs;
    friend bool operator==(const signature& a, const signature& b)
    {
        return a.parameters == b.parameters && a.outputs == b.outputs;
    }
};

/// Shapes by name, in the order of the parameters. Names live as long as this, or the program, if that does not change.
class program_parameter_shapes {
public:
    using entry = std::pair<const char*, shape>;
    explicit program_parameter_shapes(std::shared_ptr<const signature> of) : of_(std::move(of))
    {
        for(const auto& parameter : of_->parameters)
            entries_.emplace_back(parameter.first.c_str(), parameter.second);
    }
    std::size_t size() const { return entries_.size(); }
    std::vector<entry>::const_iterator begin() const { return entries_.begin(); }
    std::vector<entry>::const_iterator end() const { return entries_.end(); }
    std::vector<const char*> names() const
    {
        std::vector<const char*> found;
        for(const auto& one : entries_)
            found.push_back(one.first);
        return found;
    }
    const shape& operator[](const std::string& name) const
    {
        for(const auto& one : entries_)
            if(name == one.first)
                return one.second;
        throw error(MGX_BAD_PARAM, "Parameter not found: " + name);
    }
    operator std::unordered_map<std::string, shape>() const { return {entries_.begin(), entries_.end()}; }

private:
    std::shared_ptr<const signature> of_;
    std::vector<entry> entries_;
};

/// Arguments by name, as MIGraphX's own libraries have them.
using parameter_map = std::unordered_map<std::string, argument>;

/// Arguments by name.
class program_parameters {
public:
    program_parameters() = default;
    program_parameters(std::initializer_list<std::pair<std::string, argument>> given) : entries_(given) {}
    program_parameters(const parameter_map& given) : entries_(given.begin(), given.end()) {}
    void add(const char* name, const argument& value)
    {
        for(auto& entry : entries_)
            if(entry.first == name) {
                entry.second = value;
                return;
            }
        entries_.emplace_back(name, value);
    }
    const std::vector<std::pair<std::string, argument>>& entries() const { return entries_; }

private:
    std::vector<std::pair<std::string, argument>> entries_;
};

namespace wire {

inline msgpack::writer of(const program_parameters& given)
{
    msgpack::writer made;
    made.map(given.entries().size());
    for(const auto& entry : given.entries())
        made.string(entry.first).raw(of(entry.second));
    return made;
}

/// A path that means the same to another process.
inline std::string path(const std::string& file)
{
    char folder[4096];
    return !file.empty() && file[0] != '/' && getcwd(folder, sizeof folder) != nullptr ? std::string(folder) + "/" + file
                                                                                       : file;
}

} // namespace wire

/// What a program runs in. Runs are complete when they return, so there is no stream that could be waited for.
class context {
public:
    void finish() const {}
    /// A null pointer, or whatever else of the type stands for the default stream.
    template <class Stream>
    Stream get_queue() const
    {
        return Stream();
    }
};

/// What a traced run tells of one instruction.
class trace_info {
public:
    trace_info() = default;
    trace_info(std::size_t index, std::string name, argument result)
        : index_(index), name_(std::move(name)), result_(std::move(result))
    {
    }
    /// The instruction's number in its module, as the printed compiled program has it.
    std::size_t get_index() const { return index_; }
    /// The kernel or operator that ran: "ref::sub", "cpu::mul_add_kernel".
    const std::string& get_name() const { return name_; }
    /// The first result.
    const argument& get_result() const { return result_; }

private:
    std::size_t index_ = 0;
    std::string name_;
    argument result_;
};

/// A program. Copies share it; any number of threads may call `eval` at once, but nothing else beside it that changes it.
class program {
public:
    program() : state_(std::make_shared<state>()) {}
    explicit program(const mgx_library* library, const file_options& options = {})
        : program(std::make_shared<library_program>(library, nullptr, options))
    {
    }
    explicit program(std::shared_ptr<library_program> library) : program() { state_->library = std::move(library); }
    /// A program that the compiler's process has just made, as it answered.
    explicit program(const std::shared_ptr<compiler>& process, const msgpack::value& answer) : program()
    {
        state_->remote = std::make_shared<remote_program>(process, answer["program"].number);
        take(answer);
    }

    /// Compile, in place. For the CPU it becomes a library, which runs in this process; what cannot be one (steps without
    /// a kernel, lengths that only a run tells, other targets) is run by the compiler's process.
    void compile(const target& t, const compile_options& options = {}) const
    {
        request what = remote().about("compile");
        what.add("target", t.name()).add_flag("fast_math", options.fast_math);
        what.add_flag("exhaustive_tune", options.exhaustive_tune).add("device_id", options.device_id);
        change(what);
    }
    /// Whether `eval` runs a library in this process.
    bool is_library() const { return state_->library != nullptr; }

    program_parameter_shapes get_parameter_shapes() const { return program_parameter_shapes(describe()); }
    shapes get_output_shapes() const
    {
        shapes found;
        for(const auto& output : describe()->outputs)
            found.push_back(output.second);
        return found;
    }
    /// Names of the results, in order; MIGraphX itself has none.
    std::vector<const char*> get_output_names() const
    {
        std::vector<const char*> found;
        for(const auto& output : describe()->outputs)
            found.push_back(output.first.c_str());
        return found;
    }
    /// Run; the results have memory of their own.
    arguments eval(const program_parameters& given) const
    {
        if(is_library()) {
            try {
                return state_->library->run(given.entries());
            } catch(const error& wrong) {
                const std::string text = wrong.what();
                if(state_->remote == nullptr || text.find("has the shape") == std::string::npos)
                    throw;
                throw error(wrong.status(), text + "; program::reshape changes lengths, up to those that parse_onnx was "
                                                   "given in onnx_options::map_input_dims");
            }
        }
        request what = existing().about("run");
        what.add("inputs").raw(wire::of(given));
        return results_of(ask(what));
    }
    /// Run step by step in the compiler's process, and call `callback` with a `trace_info` after each step. The results
    /// of a program that was loaded as a library cannot be traced. What `callback` throws ends the run.
    template <class Callback>
    arguments run_trace(const program_parameters& given, Callback callback) const
    {
        request what = existing().about("run_trace");
        what.add("inputs").raw(wire::of(given));
        return results_of(existing().ask(what, [&](const msgpack::value& call, request&) {
            const auto& results = call["results"].items;
            callback(trace_info(static_cast<std::size_t>(call["index"].number), call["name"].text,
                                results.empty() ? argument() : wire::to_argument(results[0])));
        }));
    }
    /// As `eval`: the results are complete on return, whatever the stream still has to do.
    template <class Stream>
    arguments run_async(const program_parameters& given, Stream*) const
    {
        return eval(given);
    }
    context experimental_get_context() const { return context(); }
    /// Give inputs other lengths, in place; a program that is compiled is compiled for them.
    void reshape(const std::unordered_map<std::string, std::vector<std::size_t>>& lengths) const
    {
        request what = existing().about("reshape");
        what.add("lengths").raw(wire::of(lengths));
        change(what);
    }
    /// Order the instructions topologically.
    void sort() const { change(remote().about("sort")); }
    /// The text form; of a library, which has none, names and shapes.
    void print(std::ostream& out = std::cout) const
    {
        if(state_->remote != nullptr || !is_library()) {
            out << remote().ask(remote().about("text"))["text"].text;
            return;
        }
        const mgx_library& library = state_->library->library();
        for(std::size_t k = 0; k < library.parameter_count; k++)
            print(out, "parameter ", library.parameters[k]);
        for(std::size_t k = 0; k < library.output_count; k++)
            print(out, "output ", library.outputs[k]);
    }
    /// The graph in Graphviz's language; `brief` leaves out attributes and shapes.
    void print_graph(std::ostream& out, bool brief = false) const
    {
        request what = existing().about("graph");
        out << ask(what.add_flag("brief", brief))["text"].text;
    }
    bool is_compiled() const
    {
        return is_library() || (state_->remote != nullptr && ask(about("is_compiled"))["compiled"]);
    }
    main_module get_main_module() const
    {
        const module found = module_of(remote().about("main_module"));
        if(state_->main == nullptr)
            state_->main.reset(new module(found));
        *state_->main = found;
        return main_module(state_->main.get());
    }
    module create_module(const std::string& name) const
    {
        return module_of(remote().about("create_module").add("name", name));
    }
    /// A request about this program; `change` asks for what changes it.
    request about(const std::string& what) const { return existing().about(what); }
    msgpack::value ask(const request& what) const { return existing().ask(what); }
    void change(const request& what) const
    {
        take(remote().ask(what));
    }

    friend bool operator==(const program& a, const program& b)
    {
        if(a.state_ == b.state_ || a.state_->remote == nullptr || b.state_->remote == nullptr)
            return a.state_ == b.state_;
        request what = a.existing().about("equal");
        return static_cast<bool>(a.ask(what.add("other", b.existing().id()))["equal"]);
    }
    friend bool operator!=(const program& a, const program& b) { return !(a == b); }
    friend std::ostream& operator<<(std::ostream& out, const program& p)
    {
        p.print(out);
        return out;
    }

private:
    struct state {
        std::shared_ptr<remote_program> remote;   // null of a library that was loaded, and of a program not yet begun
        std::shared_ptr<library_program> library; // null if the compiler's process runs it
        std::shared_ptr<const signature> known;
        std::mutex lock; // of `known`
        std::unique_ptr<module> main;
    };

    /// The program in the compiler's process, where an empty one begins.
    remote_program& remote() const
    {
        if(state_->remote == nullptr && !is_library())
            state_->remote = remote_program::create();
        return existing();
    }
    remote_program& existing() const
    {
        if(state_->remote == nullptr)
            throw error(MGX_BAD_PARAM, is_library() ? "the program was loaded as a library, which can only run"
                                                    : "the program is empty: load, parse or build one");
        return *state_->remote;
    }
    void take(const msgpack::value& answer) const
    {
        state_->library.reset();
        if(answer["library"])
            state_->library = library_program::open(answer["library"].text.c_str(), {});
    }
    module module_of(const request& what) const { return module(state_->remote, remote().ask(what)["module"].number); }
    std::shared_ptr<const signature> describe() const
    {
        auto found = std::make_shared<signature>();
        if(state_->remote != nullptr || !is_library()) {
            const msgpack::value answer = ask(existing().about("describe"));
            for(const auto& entry : answer["parameters"].items)
                found->parameters.emplace_back(entry["name"].text, wire::to_shape(entry));
            for(const auto& entry : answer["outputs"].items)
                found->outputs.emplace_back(entry["name"].text, wire::to_shape(entry));
        } else {
            const mgx_library& library = state_->library->library();
            for(std::size_t k = 0; k < library.parameter_count; k++)
                found->parameters.emplace_back(library.parameters[k].name,
                                               library_program::shape_of(library.parameters[k]));
            for(std::size_t k = 0; k < library.output_count; k++)
                found->outputs.emplace_back(library.outputs[k].name, library_program::shape_of(library.outputs[k]));
        }
        const std::lock_guard<std::mutex> guard(state_->lock);
        if(state_->known == nullptr || !(*state_->known == *found))
            state_->known = found;
        return state_->known;
    }
    static arguments results_of(const msgpack::value& answer)
    {
        arguments results;
        for(const auto& result : answer["results"].items)
            results.push_back(wire::to_argument(result));
        return results;
    }
    static void print(std::ostream& out, const char* kind, const mgx_tensor& tensor)
    {
        out << kind << tensor.name << ": type " << static_cast<int>(tensor.type) << ", {";
        for(std::size_t axis = 0; axis < tensor.rank; axis++)
            out << (axis == 0 ? "" : ", ") << tensor.lens[axis];
        out << "}\n";
    }

    std::shared_ptr<state> state_;
};

/// Load a library, by its path or as dlopen finds it, or an .mxr file. Of such a file the library in it runs if it is
/// trusted, and if this CPU has what it needs; otherwise the compiler's process reads it, and compiles it if it was saved
/// compiled.
inline program load(const std::string& file, const file_options& options = {})
{
    char head[4] = {};
    const int opened = open(file.c_str(), O_RDONLY | O_CLOEXEC);
    const bool other = opened >= 0 && (::read(opened, head, 4) != 4 || std::memcmp(head, "\177ELF", 4) != 0);
    if(opened >= 0)
        ::close(opened);
    if(!other)
        return program(library_program::open(file.c_str(), options));
    if(options.trust_objects() && options.format == "msgpack") {
        try {
            if(auto found = mxr::load(file, options))
                return program(std::move(found));
        } catch(const error& wrong) {
            if(wrong.status() != MGX_UNSUPPORTED_CPU && wrong.status() != MGX_BAD_VERSION)
                throw;
        }
    }
    std::shared_ptr<compiler> process;
    try {
        process = compiler::get();
    } catch(const error& wrong) {
        const bool refused = !options.trust_objects() && mxr::has_library(file);
        throw error(wrong.status(), file + ": " + wrong.what()
                                        + (refused ? "; the file has a library, which runs without it if you trust the "
                                                     "file: file_options::set_trust_objects()"
                                                   : ""));
    }
    request what("load");
    what.add("file", wire::path(file)).add("format", options.format);
    what.add_flag("trust_objects", options.trust_objects());
    return program(process, process->ask(what));
}

/// Write an .mxr file: the program before compilation, and how it was compiled; see `file_options` for what may be added.
inline void save(const program& p, const std::string& file, const file_options& options = {})
{
    request what = p.about("save");
    what.add("file", wire::path(file)).add("format", options.format);
    p.ask(what.add_flag("embed_library", options.embed_library()));
}

} // namespace migraphx

#endif
