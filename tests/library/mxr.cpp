// .mxr files that have a library: `mxr run FILE [trust]` prints what becomes of it and writes output0.bin, ...;
// `mxr both FILE FILE` runs two of them at once;
// `mxr fuzz FILE CHANGED SEED COUNT` loads so many damaged copies, written to CHANGED, and counts what became of them.
#include <fstream>
#include <iterator>

#include "support.hpp"

using migraphx::argument;

static void run(const char* path, bool trust)
{
    migraphx::file_options options;
    options.set_trust_objects(trust);
    options.set_num_threads(2);
    const migraphx::program p = migraphx::load(path, options);
    const auto given = inputs_of(p, 1);
    const migraphx::arguments results = p.eval(given);
    std::cout << "library " << p.is_library() << "\n";
    const auto write = [](const std::string& name, const argument& value) {
        std::ofstream(name, std::ios::binary).write(value.data(), static_cast<std::streamsize>(value.get_shape().bytes()));
    };
    for(std::size_t k = 0; k < results.size(); k++)
        write("output" + std::to_string(k) + ".bin", results[k]);
    for(const auto& entry : given.entries())
        write(entry.first + ".bin", entry.second);
}

// Both at once: each has its own library.
static void both(const char* first, const char* second)
{
    migraphx::file_options options;
    options.set_trust_objects();
    const migraphx::program p = migraphx::load(first, options), q = migraphx::load(second, options);
    for(const migraphx::program& one : {p, q})
        std::cout << one.get_parameter_shapes().names().size() << " " << one.eval(inputs_of(one, 1)).size() << "\n";
}

class mutator {
public:
    mutator(std::string good, const migraphx::mxr::embedded_library& places, unsigned seed)
        : good_(std::move(good)), random_(seed)
    {
        for(std::size_t at = 0; at < good_.size(); at++)
            if(!inside(places.code, at) && !inside(places.weights, at))
                structure_.push_back(at);
    }
    /// A copy with a few changes, most of them outside of code and weights; `weights` says if these may have changed.
    std::string next()
    {
        std::string changed = good_;
        for(std::size_t left = 1 + below(3); left != 0; left--)
            change(changed);
        return changed;
    }

private:
    static bool inside(const migraphx::mxr::range& range, std::size_t at)
    {
        return range.found && at >= range.at && at - range.at < range.count;
    }
    std::size_t below(std::size_t limit) { return static_cast<std::size_t>(random_() % limit); }
    std::size_t place(const std::string& in)
    {
        return std::min(below(8) == 0 ? below(in.size()) : structure_[below(structure_.size())], in.size() - 1);
    }
    void change(std::string& in)
    {
        static const unsigned char heads[] = {0x80, 0x90, 0xc0, 0xc4, 0xc6, 0xcf, 0xd3, 0xdb, 0xdd, 0xdf, 0x00, 0x7f, 0xff};
        if(in.size() < 2)
            return;
        const std::size_t at = place(in);
        switch(below(6)) {
        case 0: in[at] = static_cast<char>(random_()); break;
        case 1: in[at] = static_cast<char>(in[at] ^ 1 << below(8)); break;
        case 2: in[at] = static_cast<char>(heads[below(sizeof heads)]); break;
        case 3: in.erase(at, 1 + below(16)); break;
        case 4: in.insert(at, 1 + below(16), static_cast<char>(random_())); break;
        default: in.resize(at + 1); break;
        }
    }
    std::string good_;
    std::vector<std::size_t> structure_;
    std::mt19937_64 random_;
};

static void fuzz(const char* path, const std::string& changed, unsigned seed, int count)
{
    std::ifstream file(path, std::ios::binary);
    const std::string good((std::istreambuf_iterator<char>(file)), std::istreambuf_iterator<char>());
    migraphx::msgpack::memory_source bytes(good.data(), good.size());
    mutator mutate(good, migraphx::mxr::find(bytes), seed);
    int refused = 0, without = 0, loaded = 0;
    for(int k = 0; k < count; k++) {
        std::ofstream(changed, std::ios::binary | std::ios::trunc) << mutate.next();
        migraphx::file_options options;
        options.set_num_threads(1);
        options.set_copy_weights(k % 2 == 0);
        try {
            auto found = migraphx::mxr::load(changed, options);
            if(found == nullptr) {
                without++;
                continue;
            }
            const migraphx::program p(std::move(found));
            p.eval(inputs_of(p, 1));
            loaded++;
        } catch(const migraphx::error& error) {
            refused += std::string(error.what()).size() > 20; // it says what is wrong
        }
    }
    std::cout << refused << " " << without << " " << loaded << "\n";
}

int main(int argc, char** argv)
{
    try {
        if(std::string(argv[1]) == "run")
            run(argv[2], argc > 3);
        else if(std::string(argv[1]) == "both")
            both(argv[2], argv[3]);
        else
            fuzz(argv[2], argv[3], static_cast<unsigned>(std::atoi(argv[4])), std::atoi(argv[5]));
    } catch(const migraphx::error& error) {
        std::cout << error.status() << " " << error.what() << "\n";
        return 1;
    }
}
