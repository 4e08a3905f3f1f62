"""Generators of pointwise and reduction kernels."""
