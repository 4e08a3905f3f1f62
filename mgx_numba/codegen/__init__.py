"""Code generation: problems to kernel sources to machine code; object store and loader."""
