"""Copies of programs: by ``clone`` and the module ``copy`` in this process, by ``pickle`` in others."""

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
    """The portable form, not compiled, with what is known of it."""
    result = type(p).wrap(p._portable.clone())
    result._disabled_passes = p._disabled_passes
    result._records = list(p._records)
    result._store = p._store
    result._layer_choices, result._find_calibration = p._layer_choices, p._find_calibration
    if "_calibration" in p.__dict__:
        result._calibration = p._calibration
    return result


def copied(p: program) -> program:
    """A program that changes of this one do not reach, compiled as this one is."""
    result = cloned(p)
    result._reread = copy.copy(p._reread)
    if p._options is not None:
        result.compile(p._target, dataclasses.asdict(p._options))
    return result


def pickled(p: program) -> tuple[Callable[[bytes], program], tuple[bytes]]:
    """What ``pickle`` asks for: the bytes of ``save_buffer`` and what reads them, on a device of the same number."""
    from .. import load_buffer, save_buffer

    device_id = 0 if p._options is None else p._options.device_id
    return functools.partial(load_buffer, device_id=device_id), (save_buffer(p),)
