"""Kernels that move, select or window data: pooling, gathers, transposes, padding, resizing, ordering, scans."""
