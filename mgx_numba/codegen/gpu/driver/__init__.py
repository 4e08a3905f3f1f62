"""NVIDIA's driver API through ctypes: functions, errors, devices, modules, graphs."""
