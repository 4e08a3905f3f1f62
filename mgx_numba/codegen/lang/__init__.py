"""The vector language that kernels of every back end share: intrinsics by family, written as LLVM IR."""
