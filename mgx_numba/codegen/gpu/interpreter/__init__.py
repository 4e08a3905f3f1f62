"""Runs kernels of the GPU's language in Python, and reports what no kernel may do."""
