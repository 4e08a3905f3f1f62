"""Copies of programs: ``clone`` and the module ``copy`` in this process, ``pickle`` across processes."""

from __future__ import annotations

import copy
import dataclasses
import functools
from collections.abc import Callable
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from .program import program

__all__ = ["cloned", "copied", "pickled"]


def cloned(p: program) -> program:
    """Return an uncompiled program with a copy of the portable form and of its metadata."""
    result = type(p).wrap(p._portable.clone())
    result._disabled_passes = p._disabled_passes
    result._records = list(p._records)
    result._store = p._store
    result._layer_choices, result._find_calibration = p._layer_choices, p._find_calibration
    if "_calibration" in p.__dict__:
        result._calibration = p._calibration
    return result


def copied(p: program) -> program:
    """Return an independent copy of a program, with the compiled form of the original."""
    result = cloned(p)
    result._reread = copy.copy(p._reread)
    if p._options is not None:
        result.compile(p._target, dataclasses.asdict(p._options))
    return result


def pickled(p: program) -> tuple[Callable[[bytes], program], tuple[bytes]]:
    """Return the reduce value for ``pickle``: the reader and the bytes of ``save_buffer``; the device number is
    kept."""
    from .. import load_buffer, save_buffer

    device_id = 0 if p._options is None else p._options.device_id
    return functools.partial(load_buffer, device_id=device_id), (save_buffer(p),)
