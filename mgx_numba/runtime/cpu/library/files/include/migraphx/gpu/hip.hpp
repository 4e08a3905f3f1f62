// Data of devices. This process has none: what is compiled for a device runs in the compiler's process, which copies
// arguments there and results back. So these copy memory of the host, and programs that use them run unchanged.
#ifndef MIGRAPHX_GPU_HIP_HPP
#define MIGRAPHX_GPU_HIP_HPP

#include "../argument.hpp"

namespace migraphx {
namespace gpu {

/// A copy of an argument, in row-major order.
inline argument to_gpu(const argument& value, bool = false) { return value.copy(); }

inline argument from_gpu(const argument& value) { return value.copy(); }

/// Memory that is not set.
inline argument allocate_gpu(const shape& s, bool = false) { return argument(s); }

/// Runs are complete when they return.
inline void gpu_sync() {}

} // namespace gpu
} // namespace migraphx

#endif
