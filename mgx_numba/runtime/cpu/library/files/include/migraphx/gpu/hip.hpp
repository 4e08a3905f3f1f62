// Data of devices. This process has none: what is compiled for a device runs in the compiler's process, which copies
// arguments there and results back. So these copy memory of the host, and programs that use them run unchanged.
#ifndef MIGRAPHX_GPU_HIP_HPP
#define MIGRAPHX_GPU_HIP_HPP

#include "../argument.hpp"

namespace migraphx {
namespace gpu {

/// A copy of an argument, in row-major order.
inline argument to_gpu(const argument& value)
{
    const shape& from = value.get_shape();
    const std::size_t size = mgx_type_size(from.type());
    argument made(from.standard() ? from : shape(from.type(), from.lengths()));
    for(std::size_t k = 0; k < from.elements(); k++)
        std::memcpy(made.data() + k * size, value.data() + from.index(k) * size, size);
    return made;
}

inline argument from_gpu(const argument& value) { return to_gpu(value); }

} // namespace gpu
} // namespace migraphx

#endif
