"""Fused clusters: pointwise and reduction modules printed as vector kernels, generic in shape."""
