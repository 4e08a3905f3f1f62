"""Benchmarks and the model graphs that tests and benchmarks share; not part of the installed package."""
