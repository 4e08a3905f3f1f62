"""Look up functions and classes of this package by the names that plan files hold."""

from __future__ import annotations

import importlib
from typing import Any

from ...errors import FormatError


def named(module: str, name: str) -> Any:
    """Return a class or a function of this package.

    Raises:
        FormatError: the module is not one of this package.
    """
    if not module.startswith("mgx_numba."):
        raise FormatError(f"a plan file names {module}.{name}")
    return getattr(importlib.import_module(module), name)
