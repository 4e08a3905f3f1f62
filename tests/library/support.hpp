// What the programs of these tests have in common.
#ifndef TESTS_LIBRARY_SUPPORT_HPP
#define TESTS_LIBRARY_SUPPORT_HPP

#include <functional>
#include <migraphx/migraphx.hpp>

inline void require(bool holds, const std::string& what)
{
    if(!holds)
        throw std::runtime_error("it does not hold: " + what);
}

/// Print what a call is refused with.
inline void refusal(const std::string& title, const std::function<void()>& call)
{
    try {
        call();
    } catch(const migraphx::error& error) {
        std::cout << title << ": " << error.status() << " " << error.what() << "\n";
        return;
    }
    require(false, title + " is refused");
}

/// Generated inputs.
inline migraphx::program_parameters inputs_of(const migraphx::program& p, std::size_t seed)
{
    migraphx::program_parameters made;
    const auto shapes = p.get_parameter_shapes();
    for(const char* name : shapes.names())
        made.add(name, migraphx::argument::generate(shapes[name], seed++));
    return made;
}

#endif
