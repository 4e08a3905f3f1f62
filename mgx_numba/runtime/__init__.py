"""Running a plan: executor, threads, per-call contexts. Needs no Numba when the object store is filled."""
