"""Running a plan on the CPU: executor, threads, per-call contexts, calls that are one native function."""
