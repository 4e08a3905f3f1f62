"""A part of the suite on 64-bit ARM, by user-mode emulation: see `tests.arm.__main__`."""
