"""A plan as a shared library for C and C++: data, machine code and a small run time in C, without Python."""

from __future__ import annotations

from pathlib import Path

__all__ = ["CPP_PREFIX"]

CPP_PREFIX = Path(__file__).with_name("files")
"""Where compilers find ``include/migraphx`` and CMake the package ``migraphx``; with the sources of all libraries."""
