"""Export plans as shared libraries for C and C++: data, machine code and a small C runtime, without Python."""

from __future__ import annotations

from pathlib import Path

CPP_PREFIX = Path(__file__).with_name("files")
"""Folder with ``include/migraphx`` for compilers, the CMake package ``migraphx``, and the C sources of all
libraries."""
