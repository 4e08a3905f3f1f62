// MIGraphX's C++ interface over libraries that mgx_numba exported, and over its compiler.
//
// Programs that are compiled run in this process, without Python: those of a library that is linked,
// `migraphx::program p(resnet50_library());` with resnet50.h, of one that is opened,
// `migraphx::load("lib/libresnet50.so")`, or of an .mxr file that has a library and is trusted. What reads, builds, quantises
// and compiles programs starts mgx-numba-driver, as compilers start assemblers. Errors are `migraphx::error`, a
// `std::runtime_error`, but for `std::bad_alloc`.
#ifndef MIGRAPHX_MIGRAPHX_HPP
#define MIGRAPHX_MIGRAPHX_HPP

#include "custom_op.hpp"
#include "gpu/hip.hpp"
#include "quantization.hpp"
#include "ranges.hpp"
#include "tf.hpp"

namespace migraphx {

/// MIGraphX's name of the namespace of its public interface.
namespace api {
using namespace migraphx;
}

} // namespace migraphx

#endif
