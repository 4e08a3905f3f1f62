"""Interpreter of GPU kernels in Python; detects races, out-of-bounds accesses and other illegal behaviour."""
