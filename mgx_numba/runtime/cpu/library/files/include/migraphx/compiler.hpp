// The compiler: a process of mgx-numba-driver, which parses, quantises and compiles what this process asks for.
//
// It is started by the first call that needs it and ends with this process. The environment variable MGX_DRIVER is
// the command that starts it, words between blanks, if it is not `mgx-numba-driver`.
#ifndef MIGRAPHX_COMPILER_HPP
#define MIGRAPHX_COMPILER_HPP

#include <spawn.h>
#include <sys/socket.h>
#include <sys/wait.h>

#include <atomic>
#include <cstdlib>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <sstream>
#include <unordered_map>

#include "argument.hpp"
#include "msgpack.hpp"

extern "C" char** environ;

namespace migraphx {

/// What is asked of the compiler: its name, and what belongs to it.
class request {
public:
    explicit request(const std::string& name) { add("do").string(name); }
    msgpack::writer& add(const std::string& key)
    {
        count_++;
        return body_.string(key);
    }
    request& add(const std::string& key, const std::string& value)
    {
        add(key).string(value);
        return *this;
    }
    request& add(const std::string& key, std::int64_t value)
    {
        add(key).integer(value);
        return *this;
    }
    request& add_flag(const std::string& key, bool value)
    {
        add(key).boolean(value);
        return *this;
    }
    std::string text() const { return msgpack::writer().map(count_).raw(body_).text(); }

private:
    std::size_t count_ = 0;
    msgpack::writer body_;
};

/// A function that the compiler's process calls while it does what was asked: it reads its arguments, and writes what it
/// gives. Its exceptions are the request's.
using called_function = std::function<void(const msgpack::value& arguments, request& reply)>;

/// The process. Calls from several threads wait for each other.
class compiler {
public:
    /// The one of this process; started if need be, also after it has ended, and in a child after a fork.
    static std::shared_ptr<compiler> get()
    {
        const std::lock_guard<std::recursive_mutex> guard(of_all());
        static std::shared_ptr<compiler> one;
        if(one == nullptr || one->ended_ || one->owner_ != getpid()) {
            one.reset(new compiler);
            for(const auto& entry : operators())
                one->ask(request("register_op").add("name", entry.first));
        }
        return one;
    }
    /// Let programs have an operator that `function` is called for: see `experimental_custom_op_base`.
    static void register_operator(const std::string& name, const called_function& function)
    {
        get()->ask(request("register_op").add("name", name)); // without the lock: calls wait for it
        const std::lock_guard<std::recursive_mutex> guard(of_all());
        operators()[name] = function;
    }
    ~compiler() { end(); }
    compiler(const compiler&) = delete;
    compiler& operator=(const compiler&) = delete;

    /// What it answers; its errors are thrown. `trace` is called after each step of a traced run.
    msgpack::value ask(const request& what, const called_function& trace = nullptr)
    {
        if(owner_ != getpid()) // after a fork: the parent's requests go over the same socket
            throw error(MGX_COMPILER, "the program belongs to the process that this one was forked from");
        const std::lock_guard<std::recursive_mutex> guard(lock_); // a function that is called may ask for more
        if(ended_)
            throw error(MGX_COMPILER, "the compiler's process has ended, and with it the programs that it had");
        msgpack::value found = answer_to(what);
        while(found["call"])
            found = answer_to(reply_to(found, trace));
        if(found["error"])
            throw error(MGX_COMPILER, found["error"].text);
        return found;
    }

private:
    static std::recursive_mutex& of_all()
    {
        static std::recursive_mutex lock;
        return lock;
    }
    static std::map<std::string, called_function>& operators()
    {
        static std::map<std::string, called_function> all;
        return all;
    }
    static called_function operator_called(const std::string& name)
    {
        const std::lock_guard<std::recursive_mutex> guard(of_all());
        const auto found = operators().find(name);
        return found == operators().end() ? nullptr : found->second;
    }
    msgpack::value answer_to(const request& what)
    {
        std::string answer;
        bool whole;
        try {
            whole = exchange(what.text(), answer);
        } catch(...) { // what is left of the answer would be taken for the next one
            end();
            throw;
        }
        if(!whole)
            throw error(MGX_COMPILER, "the compiler's process has ended" + told(end()));
        msgpack::memory_source bytes(answer.data(), answer.size());
        return msgpack::reader(bytes).tree();
    }
    static request reply_to(const msgpack::value& call, const called_function& trace)
    {
        std::string wrong;
        try {
            request reply("returned");
            const called_function function = call["call"].text == "trace" ? trace : operator_called(call["name"].text);
            if(!function)
                throw error(MGX_COMPILER, "no operator has this name");
            function(call, reply);
            return reply;
        } catch(const std::exception& thrown) {
            wrong = thrown.what();
        } catch(...) {
            wrong = "an exception that is no std::exception";
        }
        return request("returned").add("error", call["call"].text + " of " + call["name"].text + ": " + wrong);
    }
    compiler()
    {
        int ends[2];
        const char* variable = std::getenv("MGX_DRIVER");
        std::istringstream command(variable != nullptr && *variable != '\0' ? variable : "mgx-numba-driver");
        std::vector<std::string> words;
        for(std::string word; command >> word;)
            words.push_back(word);
        words.push_back("serve");
        if(std::getenv("MIGRAPHX_LOG_LEVEL") == nullptr)
            words.insert(words.end(), {"--log-level", "warn"});
        std::vector<char*> pointers;
        for(auto& word : words)
            pointers.push_back(&word[0]);
        pointers.push_back(nullptr);
        if(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, ends) != 0)
            throw error(MGX_COMPILER, std::string("no socket can be made: ") + std::strerror(errno));
        posix_spawn_file_actions_t actions;
        posix_spawn_file_actions_init(&actions);
        posix_spawn_file_actions_adddup2(&actions, ends[1], 0);
        const int failed = posix_spawnp(&child_, pointers[0], &actions, nullptr, pointers.data(), environ);
        posix_spawn_file_actions_destroy(&actions);
        ::close(ends[1]);
        socket_ = ends[0];
        if(failed != 0) {
            ::close(socket_);
            throw error(MGX_COMPILER, "the compiler " + words[0] + " cannot be started: " + std::strerror(failed)
                                          + "; the Python package mgx_numba brings it, MGX_DRIVER says where it is");
        }
        ended_ = false;
    }
    /// Send a request and receive the answer; false if the process has ended.
    bool exchange(const std::string& text, std::string& answer)
    {
        unsigned char head[8];
        std::uint64_t length = text.size();
        for(int k = 0; k < 8; k++)
            head[k] = static_cast<unsigned char>(length >> (8 * k) & 0xff);
        char* const raw = reinterpret_cast<char*>(head);
        if(!send_all(raw, sizeof head) || !send_all(text.data(), text.size()) || !receive(raw, sizeof head))
            return false;
        length = 0;
        for(int k = 7; k >= 0; k--)
            length = length << 8 | head[k];
        answer.resize(static_cast<std::size_t>(length));
        return answer.empty() || receive(&answer[0], answer.size());
    }
    bool send_all(const char* data, std::size_t count)
    {
        while(count != 0) {
            const ssize_t done = send(socket_, data, count, MSG_NOSIGNAL);
            if(done < 0 && errno == EINTR)
                continue;
            if(done < 0)
                return false;
            data += done;
            count -= static_cast<std::size_t>(done);
        }
        return true;
    }
    bool receive(char* data, std::size_t count)
    {
        while(count != 0) {
            const ssize_t done = recv(socket_, data, count, 0);
            if(done < 0 && errno == EINTR)
                continue;
            if(done <= 0)
                return false;
            data += done;
            count -= static_cast<std::size_t>(done);
        }
        return true;
    }
    /// Close the socket, on which the process ends, and wait for that; its status.
    int end()
    {
        int status = 0;
        if(ended_)
            return status;
        ended_ = true;
        ::close(socket_);
        while(waitpid(child_, &status, 0) < 0 && errno == EINTR) {
        }
        return status;
    }
    static std::string told(int status)
    {
        if(WIFSIGNALED(status))
            return " by signal " + std::to_string(WTERMSIG(status));
        return " with status " + std::to_string(WEXITSTATUS(status)) + "; what it said is on standard error";
    }
    std::recursive_mutex lock_;
    const pid_t owner_ = getpid();
    pid_t child_ = 0;
    int socket_ = -1;
    std::atomic<bool> ended_{true};
};

/// Shapes and tensors as they pass between the processes.
namespace wire {

inline msgpack::writer of(const std::vector<std::size_t>& numbers)
{
    msgpack::writer made;
    made.array(numbers.size());
    for(const std::size_t number : numbers)
        made.integer(static_cast<std::int64_t>(number));
    return made;
}

inline msgpack::writer of(const dynamic_dimension& dim)
{
    msgpack::writer made;
    made.map(3).string("min").integer(static_cast<std::int64_t>(dim.min)).string("max");
    made.integer(static_cast<std::int64_t>(std::min<std::size_t>(dim.max, INT64_MAX))).string("optimals");
    return made.raw(of(std::vector<std::size_t>(dim.optimals.begin(), dim.optimals.end())));
}

inline msgpack::writer of(const dynamic_dimensions& dims)
{
    msgpack::writer made;
    made.array(dims.size());
    for(const auto& dim : dims)
        made.raw(of(dim));
    return made;
}

inline msgpack::writer of(const std::vector<std::string>& names)
{
    msgpack::writer made;
    made.array(names.size());
    for(const auto& name : names)
        made.string(name);
    return made;
}

inline msgpack::writer of(const shape& s)
{
    msgpack::writer made;
    made.map(s.dynamic() ? 2 : 3).string("type").integer(s.type());
    if(s.dynamic())
        return made.string("dyn_dims").raw(of(s.dyn_dims()));
    return made.string("lens").raw(of(s.lengths())).string("strides").raw(of(s.strides()));
}

/// With the elements in row-major order.
inline msgpack::writer of(const argument& value)
{
    const shape& s = value.get_shape();
    const std::size_t size = mgx_type_size(s.type());
    msgpack::writer made;
    made.map(3).string("type").integer(s.type()).string("lens").raw(of(s.lengths())).string("data");
    if(s.elements() != 0 && value.data() == nullptr)
        throw error(MGX_BAD_PARAM, "argument: data is NULL");
    if(s.standard())
        return made.binary(value.data(), s.elements() * size);
    std::string packed(s.elements() * size, '\0');
    for(std::size_t k = 0; k < s.elements(); k++)
        std::memcpy(&packed[k * size], value.data() + s.index(k) * size, size);
    return made.binary(packed.data(), packed.size());
}

template <class T>
msgpack::writer of(const std::unordered_map<std::string, T>& entries)
{
    msgpack::writer made;
    made.map(entries.size());
    for(const auto& entry : entries)
        made.string(entry.first).raw(of(entry.second));
    return made;
}

inline std::vector<std::size_t> numbers(const msgpack::value& from)
{
    std::vector<std::size_t> found;
    for(const auto& item : from.items)
        found.push_back(static_cast<std::size_t>(item.number));
    return found;
}

inline shape to_shape(const msgpack::value& from)
{
    const auto type = static_cast<mgx_type>(from["type"].number);
    if(!from["dyn_dims"])
        return shape(type, numbers(from["lens"]), numbers(from["strides"]));
    dynamic_dimensions dims;
    for(const auto& dim : from["dyn_dims"].items) {
        const std::vector<std::size_t> best = numbers(dim["optimals"]);
        dims.emplace_back(dim["min"].number, dim["max"].number, std::set<std::size_t>(best.begin(), best.end()));
    }
    return shape(type, std::move(dims));
}

inline argument to_argument(const msgpack::value& from)
{
    argument made(to_shape(from));
    const std::string& bytes = from["data"].text;
    if(bytes.size() != made.get_shape().bytes())
        throw error(MGX_COMPILER, "the compiler's process gave a tensor of another length than it says");
    if(!bytes.empty())
        std::memcpy(made.data(), bytes.data(), bytes.size());
    return made;
}

} // namespace wire
} // namespace migraphx

#endif
