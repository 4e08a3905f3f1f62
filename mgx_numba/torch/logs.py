"""Lines of the logger ``mgx_numba.torch``."""

from __future__ import annotations

import logging
from collections.abc import Mapping

import torch
from torch.fx import Node

_log = logging.getLogger("mgx_numba.torch")
_warned: set[str] = set()


def warn_once(text: str, *values: object) -> None:
    """Log a warning, once a process."""
    line = text % values
    if line not in _warned:
        _warned.add(line)
        _log.warning("%s", line)


def warn_lacking(lacking: Mapping[Node, str]) -> None:
    """Log the operators that PyTorch runs, each with a reason."""
    if lacking:
        names = sorted({f"{_called(node)} ({reason})" for node, reason in lacking.items()})
        warn_once("PyTorch runs what cannot be compiled: %s", ", ".join(names))


def _called(node: Node) -> object:
    """Return the operator of a node, or the operator that a wrapper such as ``auto_functionalized`` calls."""
    wrapped = (x for x in node.args if isinstance(x, torch._ops.OpOverload))
    return next(wrapped, node.target)


def log_info(text: str, *values: object) -> None:
    """Log a line at the level INFO."""
    _log.info(text, *values)
