"""The CPU: what its kernels are written in and how they are printed."""
