"""mgx_numba"""
