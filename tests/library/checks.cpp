// What a library must bear: `checks LIBRARY OTHER FOLDER`. The first takes float {2, 3, 8, 8} as "image" and gives one
// result; the folder is one to write to. It prints a line for each check and ends with 1 at the first that fails.
#include <dirent.h>
#include <fcntl.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>
#include <xmmintrin.h>

#include <atomic>
#include <fstream>
#include <iterator>
#include <thread>

#include "support.hpp"

using migraphx::argument;
using migraphx::arguments;
using migraphx::program;
using migraphx::program_parameters;
using migraphx::shape;

static program kept; // its destructor runs when the process ends

static program loaded(const char* path, int threads, bool copy = false)
{
    migraphx::file_options options;
    options.set_num_threads(threads);
    options.set_copy_weights(copy);
    return migraphx::load(path, options);
}

static int threads_of_process()
{
    int found = 0;
    DIR* folder = opendir("/proc/self/task");
    while(const dirent* entry = readdir(folder))
        found += entry->d_name[0] != '.';
    closedir(folder);
    return found;
}

static void several_threads(const char* path, const char* other)
{
    const program alone = loaded(path, 1), shared = loaded(path, 3, true), second = loaded(other, 2);
    std::atomic<int> wrong{0};
    std::vector<std::thread> callers;
    const arguments wanted_second = second.eval(inputs_of(second, 0));
    for(std::size_t caller = 0; caller < 6; caller++)
        callers.emplace_back([&, caller] {
            const arguments wanted = alone.eval(inputs_of(alone, caller));
            for(int run = 0; run < 10; run++) {
                wrong += shared.eval(inputs_of(shared, caller)) != wanted;
                wrong += second.eval(inputs_of(second, 0)) != wanted_second;
            }
        });
    for(auto& caller : callers)
        caller.join();
    require(wrong == 0, "results of several threads are those of one");
    require(threads_of_process() > 2, "workers take part");
}

static void after_fork(const char* path)
{
    const program p = loaded(path, 2);
    const arguments wanted = p.eval(inputs_of(p, 1));
    const pid_t child = fork();
    if(child == 0)
        _exit(p.eval(inputs_of(p, 1)) == wanted && threads_of_process() == 2 ? 0 : 1);
    int status = 1;
    waitpid(child, &status, 0);
    require(status == 0, "a child process computes the same, with workers of its own");
    require(p.eval(inputs_of(p, 1)) == wanted, "and so does its parent");
}

static void opened_and_closed(const char* path)
{
    for(int round = 0; round < 3; round++) {
        const program p = loaded(path, 3);
        p.eval(inputs_of(p, 2));
        require(threads_of_process() == 3, "a program has its workers");
    }
    require(threads_of_process() == 1, "they end with the library's last program");
}

static void arithmetic(const char* path)
{
    const program p = loaded(path, 1);
    const program_parameters inputs = inputs_of(p, 3);
    const arguments wanted = p.eval(inputs);
    const unsigned usual = _mm_getcsr(), flushing = usual | 0x8040u | 0x6000u; // denormals are zeros, rounding to zero
    _mm_setcsr(flushing);
    const arguments found = p.eval(inputs);
    const unsigned kept = _mm_getcsr();
    _mm_setcsr(usual);
    require(found == wanted, "results do not depend on how the caller rounds");
    require(kept == flushing, "what the caller has set is kept");
}

static void unaligned(const char* path)
{
    const program p = loaded(path, 2);
    const arguments wanted = p.eval(inputs_of(p, 4));
    const shape s = p.get_parameter_shapes()["image"];
    const argument image = argument::generate(s, 4);
    std::vector<char> room(s.bytes() + 64);
    const auto at = room.data() + (64 - reinterpret_cast<std::uintptr_t>(room.data()) % 64) % 64 + 4;
    std::memcpy(at, image.data(), s.bytes());
    require(p.eval({{"image", argument(s, at)}}) == wanted, "inputs may lie at multiples of an element");
}

static void refusals(const char* path, const std::string& folder)
{
    const program p = loaded(path, 1);
    const shape right(migraphx_shape_float_type, {2, 3, 8, 8});
    refusal("missing", [&] { p.eval({{"picture", argument(right)}}); });
    refusal("shape", [&] { p.eval({{"image", argument(shape(migraphx_shape_float_type, {2, 3, 8, 7}))}}); });
    refusal("rank", [&] { p.eval({{"image", argument(shape(migraphx_shape_float_type, {2, 3, 64}))}}); });
    refusal("type", [&] { p.eval({{"image", argument(shape(migraphx_shape_double_type, {2, 3, 8, 8}))}}); });
    refusal("null", [&] { p.eval({{"image", argument(right, nullptr)}}); });
    const argument image(right);
    refusal("place", [&] { p.eval({{"image", argument(right, image.data() + 1)}}); });
    refusal("order", [&] {
        p.eval({{"image", argument(shape(right.type(), right.lengths(), {192, 1, 24, 3}))}});
    });
    refusal("library", [&] { migraphx::load(folder + "/none.so"); });
    refusal("threads", [&] { loaded(path, 5000); });
    const auto with = [&](const std::string& weights) {
        migraphx::file_options options;
        options.set_weights(weights);
        migraphx::load(path, options);
    };
    refusal("weights", [&] { with(folder + "/none.weights"); });
    refusal("folder", [&] { with(folder); });
    std::ifstream file(folder + "/lib/first.weights", std::ios::binary);
    std::string weights((std::istreambuf_iterator<char>(file)), std::istreambuf_iterator<char>());
    require(weights.size() > 8192, "there is a file of weights");
    const auto with_content = [&](const char* title, const std::string& content) {
        const std::string changed = folder + "/" + title + ".weights";
        std::ofstream(changed, std::ios::binary) << content;
        refusal(title, [&] { with(changed); });
    };
    with_content("cut", weights.substr(0, weights.size() - 64));
    with_content("tiny", weights.substr(0, 100));
    weights[20] ^= 1; // of the digest
    with_content("other", weights);
    weights[0] ^= 1; // of the magic number
    with_content("damaged", weights);
}

// The plain C interface, where callers can go wrong in more ways.
static void plain(const char* path)
{
    void* handle = dlopen(path, RTLD_NOW);
    const auto get = reinterpret_cast<const mgx_library* (*)()>(dlsym(handle, "mgx_get_library"));
    const mgx_library* library = get();
    mgx_program* program = nullptr;
    const auto tell = [&](const char* title, mgx_status status) {
        require(status != MGX_SUCCESS, std::string(title) + " is refused");
        std::cout << title << ": " << status << " " << library->error() << "\n";
    };
    mgx_options options = {};
    tell("options", library->load(&options, &program));
    tell("no place", library->load(nullptr, nullptr));
    require(library->load(nullptr, &program) == MGX_SUCCESS, "it loads");
    std::vector<float> input(2 * 3 * 8 * 8 + 4096);
    mgx_tensor in = library->parameters[0], out = library->outputs[0];
    in.data = out.data = input.data();
    tell("overlap", library->run(program, &in, 1, &out, 1));
    tell("outputs", library->run(program, &in, 1, nullptr, 0));
    tell("tensors", library->run(program, nullptr, 1, &out, 1));
    tell("no program", library->run(nullptr, &in, 1, &out, 1));
    library->destroy(program);
    library->destroy(nullptr);
    dlclose(handle);
}

int main(int argc, char** argv)
{
    try {
        require(argc == 4, "three arguments");
        opened_and_closed(argv[1]); // first: it counts threads
        several_threads(argv[1], argv[2]);
        after_fork(argv[1]);
        arithmetic(argv[1]);
        unaligned(argv[1]);
        refusals(argv[1], argv[3]);
        plain(argv[1]);
        kept = loaded(argv[1], 2);
        kept.eval(inputs_of(kept, 0));
        std::cout << "all hold\n";
    } catch(const std::exception& error) {
        std::cout << error.what() << "\n";
        return 1;
    }
}
