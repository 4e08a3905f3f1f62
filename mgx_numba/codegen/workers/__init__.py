"""Parallel compilation of kernels, in worker processes where that pays; back ends define how a kernel is compiled."""
