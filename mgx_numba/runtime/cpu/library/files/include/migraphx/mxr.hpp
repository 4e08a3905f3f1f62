// Libraries inside of .mxr files that were saved with `embed_library`.
#ifndef MIGRAPHX_MXR_HPP
#define MIGRAPHX_MXR_HPP

#include <sys/mman.h>

#include "library.hpp"
#include "msgpack.hpp"

namespace migraphx {
namespace mxr {

/// Bytes of a file.
struct range {
    std::uint64_t at = 0, count = 0;
    bool found = false;
};

/// What a file has under the key `mgx_numba_library`.
struct embedded_library {
    range code, weights;
    std::uint32_t checksum = 0; // CRC-32 of the code
    bool found = false;
};

/// A blob: an array of one binary, or a map that says where it lies behind the tree, which `end` tells.
inline range blob(msgpack::reader& from, std::uint64_t end, std::uint64_t size)
{
    range made;
    const msgpack::item head = from.next();
    if(head.what == msgpack::kind::array && head.count == 1) {
        const msgpack::item bytes = from.next();
        if(bytes.what == msgpack::kind::binary) {
            made.at = bytes.at;
            made.count = bytes.count;
            made.found = true;
            return made;
        }
    } else if(head.what == msgpack::kind::map && head.count == 2 && from.key() == "tail") {
        const msgpack::item offset = from.next();
        if(offset.what == msgpack::kind::integer && offset.number >= 0 && from.key() == "bytes") {
            const msgpack::item count = from.next();
            const std::uint64_t begin = (end + 63) / 64 * 64 + static_cast<std::uint64_t>(offset.number);
            if(count.what == msgpack::kind::integer && count.number >= 0 && begin <= size
               && static_cast<std::uint64_t>(count.number) <= size - begin) {
                made.at = begin;
                made.count = static_cast<std::uint64_t>(count.number);
                made.found = true;
                return made;
            }
        }
    }
    throw from.fail("the library in the file is malformed: bytes are expected");
}

/// Find the library; the program itself is passed over.
inline embedded_library find(msgpack::source& file)
{
    msgpack::reader from(file);
    embedded_library made;
    std::uint64_t place = 0;
    const msgpack::item root = from.next();
    if(root.what != msgpack::kind::map)
        throw from.fail("it is no .mxr file: a map is expected");
    for(std::uint64_t k = 0; k < root.count; k++) {
        const std::string key = from.key();
        if(key == "mgx_numba_library") {
            place = from.position();
            made.found = true;
        }
        from.skip();
    }
    if(!made.found)
        return made;
    msgpack::reader inner(file, place);
    const msgpack::item map = inner.next();
    for(std::uint64_t k = 0; map.what == msgpack::kind::map && k < map.count; k++) {
        const std::string key = inner.key();
        if(key == "code")
            made.code = blob(inner, from.position(), file.size());
        else if(key == "weights")
            made.weights = blob(inner, from.position(), file.size());
        else if(key == "checksum")
            made.checksum = static_cast<std::uint32_t>(inner.next().number);
        else
            inner.skip();
    }
    if(!made.code.found)
        throw inner.fail("the library in the file is malformed: it has no code");
    return made;
}

/// CRC-32 as gzip has it (RFC 1952, section 8).
inline std::uint32_t crc32(const std::string& bytes)
{
    std::uint32_t table[256], found = 0xffffffffu;
    for(std::uint32_t n = 0; n < 256; n++) {
        table[n] = n;
        for(int bit = 0; bit < 8; bit++)
            table[n] = (table[n] & 1u) != 0 ? 0xedb88320u ^ table[n] >> 1 : table[n] >> 1;
    }
    for(const char byte : bytes)
        found = table[(found ^ static_cast<unsigned char>(byte)) & 0xffu] ^ found >> 8;
    return found ^ 0xffffffffu;
}

/// A file in memory, as long as this lives.
class memory_file {
public:
    explicit memory_file(const std::string& content) : file_(memfd_create("mgx_numba_library", MFD_CLOEXEC))
    {
        if(file_ < 0)
            throw error(MGX_BAD_FILE, std::string("no file in memory can be made: ") + std::strerror(errno));
        for(std::size_t done = 0; done < content.size();) {
            const ssize_t count = write(file_, content.data() + done, content.size() - done);
            if(count < 0 && errno == EINTR)
                continue;
            if(count <= 0) {
                close(file_);
                throw std::bad_alloc();
            }
            done += static_cast<std::size_t>(count);
        }
    }
    ~memory_file() { close(file_); }
    memory_file(const memory_file&) = delete;
    memory_file& operator=(const memory_file&) = delete;
    std::string path() const { return "/proc/self/fd/" + std::to_string(file_); }

private:
    int file_;
};

/// Whether a file has a library.
inline bool has_library(const std::string& path)
{
    try {
        msgpack::file_source file(path);
        return find(file).found;
    } catch(const error&) {
        return false;
    }
}

/// The program of a library in a file that is trusted: its machine code runs. Null if the file has none.
inline std::shared_ptr<library_program> load(const std::string& path, const file_options& given)
{
    std::string code;
    embedded_library found;
    try {
        msgpack::file_source file(path);
        found = find(file);
        if(!found.found)
            return nullptr;
        msgpack::reader from(file);
        code = from.text({msgpack::kind::binary, found.code.count, found.code.at, 0, 0});
    } catch(const error& wrong) {
        const std::string what = wrong.what();
        throw error(wrong.status(), what.compare(0, path.size(), path) == 0 ? what : path + ": " + what);
    }
    if(crc32(code) != found.checksum)
        throw error(MGX_BAD_FILE, path + ": the library in the file is damaged");
    const auto file = std::make_shared<memory_file>(code); // kept open: dlopen takes two of one path for the same
    return library_program::open(file->path().c_str(), given, found.weights.found ? path : "", found.weights.at, file);
}

} // namespace mxr
} // namespace migraphx

#endif
