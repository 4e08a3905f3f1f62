// Modules and instructions: programs that are built by hand. The compiler's process has them.
#ifndef MIGRAPHX_MODULE_HPP
#define MIGRAPHX_MODULE_HPP

#include <cstdio>
#include <iostream>

#include "compiler.hpp"

namespace migraphx {

/// A program that the compiler's process has, until the last of these is gone.
class remote_program {
public:
    remote_program(std::shared_ptr<compiler> process, std::int64_t id) : process_(std::move(process)), id_(id) {}
    /// An empty program.
    static std::shared_ptr<remote_program> create()
    {
        const auto process = compiler::get();
        return std::make_shared<remote_program>(process, process->ask(request("create"))["program"].number);
    }
    ~remote_program()
    {
        try {
            process_->ask(request("drop").add("program", id_));
        } catch(const std::exception&) { // it has ended, and the program with it
        }
    }
    remote_program(const remote_program&) = delete;
    remote_program& operator=(const remote_program&) = delete;

    /// A request about this program.
    request about(const std::string& what) const { return request(what).add("program", id_); }
    msgpack::value ask(const request& what, const called_function& trace = nullptr) const
    {
        return process_->ask(what, trace);
    }
    std::int64_t id() const { return id_; }

private:
    std::shared_ptr<compiler> process_;
    std::int64_t id_;
};

/// An attribute of an operator: a number, a string, or a list of these.
class attribute {
public:
    attribute(bool value) { made_.boolean(value); }
    attribute(int value) { made_.integer(value); }
    attribute(unsigned value) { made_.integer(value); }
    attribute(long value) { made_.integer(value); }
    attribute(long long value) { made_.integer(value); }
    attribute(std::size_t value) { made_.integer(static_cast<std::int64_t>(value)); }
    attribute(double value)
    {
        std::ostringstream text; // exactly, infinities and NaN too
        text << std::hexfloat << value;
        made_.map(1).string("float").string(text.str());
    }
    attribute(const char* value) { made_.string(value); }
    attribute(const std::string& value) { made_.string(value); }
    attribute(std::initializer_list<attribute> values)
    {
        made_.array(values.size());
        for(const auto& value : values)
            made_.raw(value.made_);
    }
    const msgpack::writer& written() const { return made_; }

private:
    msgpack::writer made_;
};

/// An operator: its name and its attributes, as JSON in which names need no quotes, filled in as printf does.
class operation {
public:
    explicit operation(std::string name) : name_(std::move(name))
    {
        written_.map(0);
        check();
    }
    operation(std::string name, const char* attributes) : name_(std::move(name))
    {
        written_.string(attributes);
        check();
    }
    operation(std::string name, const std::string& attributes) : operation(std::move(name), attributes.c_str()) {}
    template <class First, class... Others>
    operation(std::string name, const char* attributes, First first, Others... others) : name_(std::move(name))
    {
        const int size = std::snprintf(nullptr, 0, attributes, first, others...);
        std::string text(static_cast<std::size_t>(size < 0 ? 0 : size) + 1, '\0');
        std::snprintf(&text[0], text.size(), attributes, first, others...);
        text.pop_back();
        written_.string(text);
        check();
    }
    operation(std::string name, std::initializer_list<std::pair<std::string, attribute>> attributes)
        : name_(std::move(name))
    {
        written_.map(attributes.size());
        for(const auto& entry : attributes)
            written_.string(entry.first).raw(entry.second.written());
        check();
    }
    const std::string& name() const { return name_; }
    const msgpack::writer& written() const { return written_; }

private:
    /// Throw if there is no such operator, or if it has no such attributes.
    void check() const
    {
        request what("check_operation");
        what.add("name", name_).add("attributes").raw(written_);
        compiler::get()->ask(what);
    }
    std::string name_;
    msgpack::writer written_;
};

inline operation make_op(const std::string& name) { return operation(name); }

inline operation make_op(const std::string& name, std::initializer_list<std::pair<std::string, attribute>> attributes)
{
    return operation(name, attributes);
}

inline operation make_json_op(const std::string& name, const std::string& attributes)
{
    return operation(name, attributes);
}

/// Refers to an instruction of a module.
class instruction {
private:
    friend class module;
    instruction(const std::weak_ptr<remote_program>& owner, std::int64_t id) : owner_(owner), id_(id) {}
    std::weak_ptr<remote_program> owner_;
    std::int64_t id_;
};

using instruction_ref = instruction;
using instructions = std::vector<instruction>;

/// Refers to a module of a program, which must live as long, or to a module without a program, which its references keep.
class module {
public:
    module(const std::shared_ptr<remote_program>& owner, std::int64_t id) : owner_(owner), id_(id) {}
    /// A module without a program: the first instruction that runs it takes it into its program.
    explicit module(const std::string& name) : kept_(remote_program::create())
    {
        owner_ = kept_;
        id_ = kept_->ask(kept_->about("create_module").add("name", name))["module"].number;
    }

    instruction add_parameter(const std::string& name, const shape& s) const
    {
        request what = about("add_parameter");
        what.add("name", name).add("shape").raw(wire::of(s));
        return added(what);
    }
    instruction add_literal(const literal& value) const
    {
        request what = about("add_literal");
        what.add("value").raw(wire::of(argument(value.get_shape(), value.data())));
        return added(what);
    }
    template <class T>
    instruction add_literal(const shape& s, const T* data) const
    {
        return add_literal(literal(argument(s, data)));
    }
    instruction add_instruction(const operation& op, const instructions& inputs,
                                const std::vector<module>& modules = {}) const
    {
        msgpack::writer bodies;
        bodies.array(modules.size());
        for(const auto& body : modules)
            bodies.array(2).integer(body.owner()->id()).integer(body.id_);
        request what = about("add_instruction");
        what.add("name", op.name()).add("attributes").raw(op.written());
        what.add("inputs").raw(references(inputs));
        what.add("modules").raw(bodies);
        return added(what);
    }
    template <class... Others>
    instruction add_instruction(const operation& op, const instruction& first, const Others&... others) const
    {
        return add_instruction(op, instructions{first, others...});
    }
    instruction add_instruction(const operation& op) const { return add_instruction(op, instructions{}); }
    instruction add_return(const instructions& results) const
    {
        request what = about("add_return");
        what.add("inputs").raw(references(results));
        return added(what);
    }
    instruction add_allocation(const shape& s) const
    {
        request what = about("add_allocation");
        what.add("shape").raw(wire::of(s));
        return added(what);
    }
    void print(std::ostream& out = std::cout) const { out << owner()->ask(about("module_text"))["text"].text; }
    /// As a pointer, which MIGraphX's own libraries have.
    const module* operator->() const { return this; }

private:
    std::shared_ptr<remote_program> owner() const
    {
        auto found = owner_.lock();
        if(found == nullptr)
            throw error(MGX_BAD_PARAM, "the program of this module is gone");
        return found;
    }
    request about(const std::string& what) const { return owner()->about(what).add("module", id_); }
    instruction added(const request& what) const
    {
        return instruction(owner_, owner()->ask(what)["instruction"].number);
    }
    msgpack::writer references(const instructions& given) const
    {
        std::vector<std::size_t> ids;
        for(const auto& one : given) {
            if(one.owner_.lock() != owner())
                throw error(MGX_BAD_PARAM, "an instruction is of another program");
            ids.push_back(static_cast<std::size_t>(one.id_));
        }
        return wire::of(ids);
    }
    std::weak_ptr<remote_program> owner_;
    std::shared_ptr<remote_program> kept_; // of a module without a program: what holds its instructions
    std::int64_t id_;
};

using module_ref = module;
using modules = std::vector<module>;

/// What `get_main_module` gives: a module, or a pointer to one that lives as long as the program.
class main_module : public module {
public:
    explicit main_module(module* kept) : module(*kept), kept_(kept) {}
    operator module*() const { return kept_; }

private:
    module* kept_;
};

} // namespace migraphx

#endif
