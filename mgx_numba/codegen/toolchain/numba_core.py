"""The parts of Numba that code generation uses.

Only this module, and `numba_cuda` for Numba's CUDA target, imports Numba. Typing, lowering and data models of Numba's
compiler are not a stable interface; setup.cfg bounds Numba to the versions with which the tests have passed.
"""

from __future__ import annotations

from numba.core import cgutils, types
from numba.core.callconv import create_error_model
from numba.core.compiler_lock import global_compiler_lock
from numba.core.cpu import CPUContext
from numba.core.datamodel import models
from numba.core.errors import NumbaError, TypingError
from numba.core.types import Type
from numba.core.typing import builtins, templates
from numba.core.typing.context import BaseContext
from numba.extending import _Intrinsic as Intrinsic
from numba.extending import intrinsic, register_model

__all__ = [
    "BaseContext",
    "CPUContext",
    "Intrinsic",
    "NumbaError",
    "Type",
    "TypingError",
    "builtins",
    "cgutils",
    "create_error_model",
    "global_compiler_lock",
    "intrinsic",
    "load_implementations",
    "models",
    "register_model",
    "templates",
    "types",
]


def load_implementations() -> None:
    """Import the modules that register Numba's lowering of numbers, ranges and tuples."""
    from numba.cpython import builtins, numbers, rangeobj, tupleobj  # noqa: F401
