// Files of one tensor, as Python's `argument.save` writes them.
#ifndef MIGRAPHX_ARGUMENT_FILE_HPP
#define MIGRAPHX_ARGUMENT_FILE_HPP

#include <fstream>

#include "argument.hpp"
#include "msgpack.hpp"

namespace migraphx {
namespace detail {

/// The names of element types, in the order of their numbers.
inline const char* const* type_names()
{
#define MGX_NAME(name, number) #name,
    static const char* const names[] = {MGX_TYPES(MGX_NAME)};
#undef MGX_NAME
    return names;
}

inline void write_numbers(msgpack::writer& to, const std::vector<std::size_t>& numbers)
{
    to.array(numbers.size());
    for(const std::size_t number : numbers)
        to.integer(static_cast<std::int64_t>(number));
}

inline std::vector<std::size_t> read_numbers(const msgpack::value& from)
{
    std::vector<std::size_t> found;
    for(const auto& item : from.items)
        found.push_back(static_cast<std::size_t>(item.number));
    return found;
}

} // namespace detail

inline void argument::save_argument(const argument& value, const std::string& file)
{
    const shape& s = value.get_shape();
    if(value.data() == nullptr && s.bytes() != 0)
        throw error(MGX_BAD_PARAM, "argument: data is NULL");
    msgpack::writer made;
    made.map(2).string("shape").map(5).string("type").string(detail::type_names()[s.type()]);
    made.string("sub_shapes").array(0).string("lens");
    detail::write_numbers(made, s.lengths());
    made.string("strides");
    detail::write_numbers(made, s.strides());
    made.string("dynamic_dimensions").array(0).string("data").array(1).binary(value.data(), s.bytes());
    std::ofstream out(file, std::ios::binary);
    out.write(made.text().data(), static_cast<std::streamsize>(made.text().size()));
    if(!out.flush())
        throw error(MGX_BAD_FILE, file + ": cannot be written: " + std::strerror(errno));
}

inline argument argument::load_argument(const std::string& file)
{
    msgpack::file_source bytes(file);
    const msgpack::value tree = msgpack::reader(bytes).tree();
    const auto names = detail::type_names();
    const auto type = std::find(names, names + MGX_FP8E5M2FNUZ + 1, tree["shape"]["type"].text);
    const std::vector<std::size_t> lens = detail::read_numbers(tree["shape"]["lens"]);
    const std::vector<std::size_t> strides = detail::read_numbers(tree["shape"]["strides"]);
    std::string data = tree["data"].text;
    for(const auto& chunk : tree["data"].items)
        data += chunk.text;
    if(type > names + MGX_FP8E5M2FNUZ || lens.size() != strides.size())
        throw error(MGX_BAD_FILE, file + ": it has no tensor of a type that C++ has");
    const shape s(static_cast<mgx_type>(type - names), lens, strides);
    if(data.size() != s.bytes())
        throw error(MGX_BAD_FILE, file + ": " + std::to_string(data.size()) + " bytes of data, the shape has "
                                      + std::to_string(s.bytes()));
    argument made(s);
    if(!data.empty())
        std::memcpy(made.data(), data.data(), data.size());
    return made;
}

inline void save_argument(const argument& value, const std::string& file) { argument::save_argument(value, file); }

inline argument load_argument(const std::string& file) { return argument::load_argument(file); }

} // namespace migraphx

#endif
