"""Target of the kernel language's lowering: processor features by LLVM's names, and element sizes.

A back end names the features around each lowering; nothing of the language asks the machine that it runs on.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar

from ...errors import CompileError

MAX_LANES = 256
"""Most lanes of a vector in the kernel language, which are spread over registers."""

_ITEMSIZE = {
    **dict.fromkeys(("bool", "int8", "uint8"), 1),
    **dict.fromkeys(("float8_e4m3fn", "float8_e4m3fnuz", "float8_e5m2", "float8_e5m2fnuz"), 1),
    **dict.fromkeys(("int16", "uint16", "float16", "bfloat16"), 2),
    **dict.fromkeys(("int32", "uint32", "float32"), 4),
    **dict.fromkeys(("int64", "uint64", "float64"), 8),
}
_features: ContextVar[frozenset[str] | None] = ContextVar("mgx_lang_features", default=None)


@contextmanager
def with_features(names: frozenset[str]) -> Iterator[None]:
    """While the block runs, in this thread, the language is lowered for a processor that has these features."""
    token = _features.set(names)
    try:
        yield
    finally:
        _features.reset(token)


def has(*names: str) -> bool:
    """Whether every named LLVM feature may be used.

    Raises:
        CompileError: no back end has said what is lowered for.
    """
    features = _features.get()
    if features is None:
        raise CompileError(
            "the kernel language is lowered outside a back end, which would name the processor's features"
        )
    return features.issuperset(names)


def itemsize(dtype: str) -> int:
    """Bytes of one stored element of a dtype given by its NumPy or ml_dtypes name."""
    return _ITEMSIZE[dtype]
