"""Run plans on the CPU: executor, threads, per-call contexts, and calls that are a single native function."""
