"""Compiling many kernels at once, in worker processes where that pays; what is compiled how is for back ends to say."""
