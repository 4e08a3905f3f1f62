"""Kernels that ship with a wheel: ``python -m tools.prebuild`` makes the files that `codegen.shipped` reads."""
