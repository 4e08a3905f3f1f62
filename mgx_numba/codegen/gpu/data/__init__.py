"""Generators of kernels that move or look up elements: gathers, padding, pooling."""
