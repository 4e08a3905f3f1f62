"""The vector language of CPU kernels: intrinsics by family, written as LLVM IR."""
