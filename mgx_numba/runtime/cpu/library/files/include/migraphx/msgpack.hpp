// msgpack (specification at msgpack.org): the form of .mxr files and of what is said to the compiler's process.
//
// What is read is not trusted: no length is believed before the bytes are there, and nesting has a limit.
#ifndef MIGRAPHX_MSGPACK_HPP
#define MIGRAPHX_MSGPACK_HPP

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdint>
#include <cstring>
#include <string>
#include <utility>
#include <vector>

#include "error.hpp"

namespace migraphx {
namespace msgpack {

/// Bytes that are read from any place.
class source {
public:
    virtual ~source() = default;
    virtual std::uint64_t size() const = 0;
    /// Copy bytes that lie inside of it; throws where they cannot be had.
    virtual void read(std::uint64_t at, void* to, std::size_t count) = 0;
};

/// Memory, which is kept by the caller.
class memory_source : public source {
public:
    memory_source(const char* data, std::size_t count) : data_(data), size_(count) {}
    std::uint64_t size() const override { return size_; }
    void read(std::uint64_t at, void* to, std::size_t count) override { std::memcpy(to, data_ + at, count); }

private:
    const char* data_;
    std::size_t size_;
};

/// A file. Small reads are served from a window of it; it is not mapped, so that one that is cut off meanwhile does no
/// harm.
class file_source : public source {
public:
    explicit file_source(const std::string& path) : path_(path), file_(open(path.c_str(), O_RDONLY | O_CLOEXEC))
    {
        struct stat status;
        if(file_ < 0)
            throw error(MGX_BAD_FILE, path + ": " + std::strerror(errno));
        if(fstat(file_, &status) != 0 || !S_ISREG(status.st_mode)) {
            close(file_);
            throw error(MGX_BAD_FILE, path + ": it is no file");
        }
        size_ = static_cast<std::uint64_t>(status.st_size);
    }
    ~file_source() override { close(file_); }
    file_source(const file_source&) = delete;
    file_source& operator=(const file_source&) = delete;

    std::uint64_t size() const override { return size_; }
    void read(std::uint64_t at, void* to, std::size_t count) override
    {
        if(count > window_bytes / 4)
            return fetch(at, static_cast<char*>(to), count);
        if(at < begin_ || at + count > begin_ + window_.size()) {
            window_.resize(static_cast<std::size_t>(std::min(std::uint64_t{window_bytes}, size_ - at)));
            begin_ = at;
            fetch(at, window_.data(), window_.size());
        }
        std::memcpy(to, window_.data() + (at - begin_), count);
    }

private:
    static constexpr std::size_t window_bytes = std::size_t{1} << 16; // some thousand small values
    void fetch(std::uint64_t at, char* to, std::size_t count)
    {
        while(count != 0) {
            const ssize_t got = pread(file_, to, count, static_cast<off_t>(at));
            if(got < 0 && errno == EINTR)
                continue;
            if(got <= 0) {
                window_.clear();
                throw error(MGX_BAD_FILE, path_ + ": " + (got < 0 ? std::strerror(errno) : "it has become shorter"));
            }
            at += static_cast<std::uint64_t>(got);
            to += got;
            count -= static_cast<std::size_t>(got);
        }
    }
    std::string path_;
    int file_;
    std::uint64_t size_ = 0, begin_ = 0;
    std::vector<char> window_;
};

enum class kind { nil, boolean, integer, real, string, binary, array, map };

/// A value, or the head of a container. `count` are the bytes of a string or binary, which lie `at`, or the elements or
/// pairs of a container.
struct item {
    kind what;
    std::uint64_t count, at;
    std::int64_t number; // of a boolean or an integer; of those from 2^63 on, the bits
    double real;
};

/// A whole tree of values; strings and binaries are both `text`.
struct value {
    kind what = kind::nil;
    std::int64_t number = 0;
    double real = 0;
    std::string text;
    std::vector<value> items;
    std::vector<std::pair<std::string, value>> entries;

    /// The entry of a map; nil if it has none.
    const value& operator[](const char* key) const&
    {
        static const value none;
        for(const auto& entry : entries)
            if(entry.first == key)
                return entry.second;
        return none;
    }
    /// Of a temporary, whose entries do not outlive it.
    value operator[](const char* key) &&
    {
        for(auto& entry : entries)
            if(entry.first == key)
                return std::move(entry.second);
        return {};
    }
    explicit operator bool() const { return what != kind::nil && (what != kind::boolean || number != 0); }
};

/// Reads values one after the other.
class reader {
public:
    explicit reader(source& from, std::uint64_t at = 0) : from_(from), at_(at) {}

    std::uint64_t position() const { return at_; }

    /// The next value; behind the head of a container, or behind all of any other.
    item next()
    {
        const unsigned char code = byte();
        if(code < 0x80 || code >= 0xe0)
            return integer(static_cast<signed char>(code));
        if(code < 0x90)
            return container(kind::map, code & 0x0f);
        if(code < 0xa0)
            return container(kind::array, code & 0x0f);
        if(code < 0xc0)
            return bytes(kind::string, code & 0x1f);
        switch(code) {
        case 0xc0: return {kind::nil, 0, at_, 0, 0};
        case 0xc2:
        case 0xc3: return {kind::boolean, 0, at_, code & 1, 0};
        case 0xc4:
        case 0xc5:
        case 0xc6: return bytes(kind::binary, big_endian(1u << (code - 0xc4)));
        case 0xca:
        case 0xcb: return real(code == 0xca ? 4 : 8);
        case 0xcc:
        case 0xcd:
        case 0xce:
        case 0xcf: return integer(static_cast<std::int64_t>(big_endian(1u << (code - 0xcc))));
        case 0xd0: return integer(static_cast<std::int8_t>(big_endian(1)));
        case 0xd1: return integer(static_cast<std::int16_t>(big_endian(2)));
        case 0xd2: return integer(static_cast<std::int32_t>(big_endian(4)));
        case 0xd3: return integer(static_cast<std::int64_t>(big_endian(8)));
        case 0xd9:
        case 0xda:
        case 0xdb: return bytes(kind::string, big_endian(1u << (code - 0xd9)));
        case 0xdc:
        case 0xdd: return container(kind::array, big_endian(code == 0xdc ? 2 : 4));
        case 0xde:
        case 0xdf: return container(kind::map, big_endian(code == 0xde ? 2 : 4));
        default: throw fail("unknown type code " + std::to_string(code));
        }
    }
    /// Pass over the next value.
    void skip()
    {
        for(std::uint64_t left = 1; left != 0; left--) {
            const item one = next();
            if(one.what == kind::array || one.what == kind::map)
                left += one.count * (one.what == kind::map ? 2 : 1);
        }
    }
    /// All of the next value.
    value tree(int depth = 0)
    {
        if(depth > max_depth)
            throw fail("values are nested too deeply");
        const item head = next();
        value made;
        made.what = head.what;
        made.number = head.number;
        made.real = head.real;
        if(head.what == kind::string || head.what == kind::binary)
            made.text = text(head);
        for(std::uint64_t k = 0; head.what == kind::array && k < head.count; k++)
            made.items.push_back(tree(depth + 1));
        for(std::uint64_t k = 0; head.what == kind::map && k < head.count; k++) {
            std::string name = key();
            made.entries.emplace_back(std::move(name), tree(depth + 1));
        }
        return made;
    }
    /// The key that comes next in a map.
    std::string key()
    {
        const item found = next();
        if(found.what != kind::string)
            throw fail("a map has a key that is no string");
        return text(found);
    }
    /// The bytes of a string or binary that was read.
    std::string text(const item& of)
    {
        std::string found(static_cast<std::size_t>(of.count), '\0');
        if(of.count != 0)
            from_.read(of.at, &found[0], found.size());
        return found;
    }
    error fail(const std::string& why) const
    {
        return error(MGX_BAD_FILE, "at byte " + std::to_string(at_) + ": " + why);
    }

private:
    static constexpr int max_depth = 64; // as in Python; programs stay far below
    void need(std::uint64_t count) const
    {
        if(count > from_.size() || at_ > from_.size() - count)
            throw fail("the data end inside of a value");
    }
    unsigned char byte() { return static_cast<unsigned char>(big_endian(1)); }
    std::uint64_t big_endian(unsigned size)
    {
        unsigned char raw[8];
        std::uint64_t found = 0;
        need(size);
        from_.read(at_, raw, size);
        at_ += size;
        for(unsigned k = 0; k < size; k++)
            found = found << 8 | raw[k];
        return found;
    }
    item integer(std::int64_t number) const { return {kind::integer, 0, at_, number, 0}; }
    item real(unsigned size)
    {
        const std::uint64_t bits = big_endian(size);
        const std::uint32_t low = static_cast<std::uint32_t>(bits);
        float narrow;
        double wide;
        std::memcpy(&narrow, &low, sizeof narrow);
        std::memcpy(&wide, &bits, sizeof wide);
        return {kind::real, 0, at_, 0, size == 4 ? static_cast<double>(narrow) : wide};
    }
    item container(kind what, std::uint64_t count) const
    {
        need(what == kind::map ? 2 * count : count); // a byte each, at least
        return {what, count, at_, 0, 0};
    }
    item bytes(kind what, std::uint64_t count)
    {
        need(count);
        const item found = {what, count, at_, 0, 0};
        at_ += count;
        return found;
    }
    source& from_;
    std::uint64_t at_;
};

/// Writes values one after the other.
class writer {
public:
    writer& nil() { return put(0xc0); }
    writer& boolean(bool value) { return put(value ? 0xc3 : 0xc2); }
    writer& integer(std::int64_t value) { return put(0xd3).big_endian(static_cast<std::uint64_t>(value), 8); }
    writer& string(const std::string& value)
    {
        put(0xdb).big_endian(value.size(), 4);
        out_ += value;
        return *this;
    }
    /// Bytes; more than fit into a `bin` (4 GiB) are refused.
    writer& binary(const char* data, std::size_t count)
    {
        if(count > UINT32_MAX)
            throw error(MGX_BAD_PARAM, "tensors of more than 4 GiB do not pass between processes");
        put(0xc6).big_endian(count, 4);
        if(count != 0)
            out_.append(data, count);
        return *this;
    }
    writer& array(std::size_t count) { return put(0xdd).big_endian(count, 4); }
    writer& map(std::size_t count) { return put(0xdf).big_endian(count, 4); }
    /// An element of a container that was written elsewhere.
    writer& raw(const writer& other)
    {
        out_ += other.out_;
        return *this;
    }
    const std::string& text() const { return out_; }

private:
    writer& put(unsigned char code)
    {
        out_ += static_cast<char>(code);
        return *this;
    }
    writer& big_endian(std::uint64_t value, int size)
    {
        for(int k = size - 1; k >= 0; k--)
            out_ += static_cast<char>(value >> (8 * k) & 0xff);
        return *this;
    }
    std::string out_;
};

} // namespace msgpack
} // namespace migraphx

#endif
