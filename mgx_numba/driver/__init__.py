"""Command line ``mgx-numba-driver``, with the commands and flags of ``migraphx-driver``."""
