"""Run plans: executors, threads, per-call contexts. Needs no Numba when the object store has all kernels."""
