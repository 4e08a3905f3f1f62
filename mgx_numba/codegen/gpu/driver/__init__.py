"""NVIDIA's driver through ctypes: its functions, its errors, devices, modules."""
