// Runs a program in MIGraphX's C++ names: `example LIBRARY [FILE...]`. In place of a library it takes an .mxr file that
// has one, which it trusts.
//
// Each FILE has the elements of one parameter, in the library's order, as raw bytes; without files they are generated.
// The results are written to output0.bin, output1.bin, ... in the current folder.
#include <migraphx/migraphx.hpp>

#include <fstream>
#include <iostream>
#include <stdexcept>

static migraphx::argument read(const migraphx::shape& shape, const char* path)
{
    migraphx::argument value(shape);
    std::ifstream file(path, std::ios::binary);
    if(!file.read(value.data(), static_cast<std::streamsize>(shape.bytes())) || file.peek() != EOF)
        throw std::runtime_error(std::string(path) + ": expected " + std::to_string(shape.bytes()) + " bytes");
    return value;
}

int main(int argc, char** argv)
{
    try {
        if(argc < 2)
            throw std::runtime_error("usage: example LIBRARY [FILE...]");
        migraphx::file_options options;
        options.set_trust_objects();
        const migraphx::program program = migraphx::load(argv[1], options);
        const auto shapes = program.get_parameter_shapes();
        migraphx::program_parameters parameters;
        for(std::size_t k = 0; k < shapes.size(); k++) {
            const char* name = shapes.names()[k];
            const int file = static_cast<int>(k) + 2;
            parameters.add(name,
                           file < argc ? read(shapes[name], argv[file]) : migraphx::argument::generate(shapes[name], k));
        }
        program.print();
        const migraphx::arguments results = program.eval(parameters);
        for(std::size_t k = 0; k < results.size(); k++) {
            std::ofstream out("output" + std::to_string(k) + ".bin", std::ios::binary);
            out.write(results[k].data(), static_cast<std::streamsize>(results[k].get_shape().bytes()));
        }
    } catch(const std::exception& error) {
        std::cerr << "example: " << error.what() << "\n";
        return 1;
    }
}
