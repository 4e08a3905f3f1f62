"""Choice of PyTorch's decompositions: operators with a builder stay whole, all others are decomposed if they can be."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import torch
from torch._decomp import core_aten_decompositions, global_decomposition_table
from torch.export.exported_program import _override_composite_implicit_decomp

from . import definitions, registry
from .flex_attention import plain_flex_attention

_FURTHER = ("backward", "_foreach")
"""Parts of names of operators whose decompositions no inference graph needs."""
_OF_COMPLEX = frozenset(("aten::complex", "aten::polar"))
"""Operators that `complex_values` takes whole; PyTorch's decompositions write to memory."""


def _name(op: torch._ops.OpOverload) -> str:
    return f"{op._schema.name}.{op._overloadname}".removesuffix(".default")


def decomposition_table() -> dict[torch._ops.OperatorBase, Callable[..., object]]:
    """Return the decompositions for AOTAutograd: PyTorch's, without those of operators that have a builder."""
    table = {**global_decomposition_table["post_autograd"], **core_aten_decompositions(), **definitions.TABLE}
    return {
        op: made
        for op, made in table.items()
        if isinstance(op, torch._ops.OpOverload)
        and registry.find(_name(op)) is None
        and op._schema.name not in _OF_COMPLEX
        and torch.Tag.nondeterministic_seeded not in op.tags
        and not any(part in op._schema.name for part in _FURTHER)
    }


@functools.cache
def _for_export() -> dict[object, object]:
    table = torch.export.default_decompositions()
    found = {**table.materialize(), **decomposition_table(), **definitions.EXPORTED}
    whole = (op for op in found if isinstance(op, torch._ops.OpOverload))
    for op in [op for op in whole if registry.find(_name(op)) is not None or op._schema.name in _OF_COMPLEX]:
        del found[op]
    return found


def export_table() -> dict[object, object]:
    """Return the decompositions for ``ExportedProgram.run_decompositions``.

    Composite operators that are missing from it stay whole, too.
    """
    return dict(_for_export())


@contextmanager
def whole_operators(autocast: bool) -> Iterator[None]:
    """Let AOTAutograd keep interpolations and recurrent layers whole, and trace the inside of flexible attention.

    PyTorch's kernels in Python would replace the former, before it looks at a table, by gathers and by unrolled steps.

    Args:
        autocast: leave recurrent layers to PyTorch's kernels, whose products autocast converts.
    """
    kept = dict.fromkeys(_composite("image"), _kept)
    if not autocast:
        kept.update(dict.fromkeys(_composite("recurrent"), _kept))
    with _override_composite_implicit_decomp(kept), plain_flex_attention():
        yield


@functools.cache
def _composite(family: str) -> list[object]:
    """Return the operators of a family of which PyTorch has a kernel in Python that decomposes them."""
    aten = torch.ops.aten
    names = dict.fromkeys(name.partition(".")[0] for name in registry.names(family))
    packets = [getattr(aten, name) for name in names]
    found = [getattr(packet, overload) for packet in packets for overload in packet.overloads()]
    return [
        op
        for op in found
        if torch._C.DispatchKey.CompositeImplicitAutograd in op.py_kernels and registry.find(_name(op)) is not None
    ]


def _kept(*_: object, **options: object) -> object:
    return NotImplemented
