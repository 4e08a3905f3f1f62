"""Kernels that move, select or window data: pooling, gathers, transposes, resizing, ordering, scans."""
