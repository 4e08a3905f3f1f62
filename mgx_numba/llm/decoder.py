"""`CompiledDecoder`: a compiled program of a language model, with the roles of its parameters and results."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

import numpy as np

from ..api.shape import unwrap_shape
from ..dataclass import dataclass
from ..errors import UnsupportedError

if TYPE_CHECKING:
    from ..api.program import program as Program


@dataclass(frozen=True)
class DecoderNames:
    """Names of a program's parameters and results; a name with ``%d`` stands for one of each layer."""

    input_ids: str = "input_ids"
    attention_mask: str = "attention_mask"
    position_ids: str = "position_ids"
    logits: str = "logits"
    past: tuple[str, ...] = ("past_key_values.%d.key", "past_key_values.%d.value")
    present: tuple[str, ...] = ("present.%d.key", "present.%d.value")


@dataclass(frozen=True)
class CacheTensor:
    """One cache parameter: shape (batch, heads, past, size).

    ``present`` and ``result`` are name and position of the result that holds the cache after a step.
    """

    name: str
    present: str
    result: int
    heads: int
    size: int
    dtype: np.dtype


@dataclass(frozen=True)
class CompiledDecoder:
    """A compiled program whose step takes tokens and caches and gives logits and caches.

    Attributes:
        mask: the parameter of the attention mask, None without such a parameter.
        positions: the parameter of the positions, None without such a parameter.
        logits: position of the result with the logits.
        compact: whether the rows of a sequence lie at the beginning of its cache, whatever the mask's columns are.
    """

    program: Program
    input_ids: str
    mask: str | None
    positions: str | None
    types: Mapping[str, np.dtype]
    logits: int
    caches: tuple[CacheTensor, ...]
    compact: bool


@dataclass(frozen=True)
class PagedDecoder:
    """A compiled program over caches [blocks, heads, block, size] that texts share; see `build.build_decoder`.

    Attributes:
        logits: position of the result with the logits.
        block: tokens of a block.
    """

    program: Program
    logits: int
    caches: tuple[CacheTensor, ...]
    block: int


def paged_decoder_of(program: Program) -> PagedDecoder:
    """Return the decoder of a compiled program that was built with ``block``."""
    shapes, results, names = program.get_parameter_shapes(), program.get_output_names(), DecoderNames()
    caches = []
    for past, present in _presents(names, list(shapes)).items():
        _, heads, block, size = (d.max for d in shapes[past].dyn_dims())
        caches.append(CacheTensor(past, present, results.index(present), heads, size, _numpy_type(shapes[past])))
    return PagedDecoder(program, results.index(names.logits), tuple(caches), block)


def decoder_of(
    program: Program, names: DecoderNames, heads: int, size: int, compact: bool, where: str
) -> CompiledDecoder:
    """Return the decoder of a compiled program.

    Args:
        heads: number of key heads, where the program's parameters leave it open.
        size: size of a head, where the program's parameters leave it open.
        compact: see `CompiledDecoder`.
        where: the model's path, for errors.

    Raises:
        UnsupportedError: a parameter has no role that is known here, or a result is missing.
    """
    shapes = program.get_parameter_shapes()
    results = program.get_output_names()
    if names.input_ids not in shapes:
        raise UnsupportedError(
            f"{where}: the model has no input {names.input_ids!r} for token ids (inputs: {', '.join(shapes)})"
        )
    if names.logits not in results:
        raise UnsupportedError(f"{where}: the model has no result {names.logits!r} (results: {', '.join(results)})")
    presents = _presents(names, list(shapes))
    known = {names.input_ids, names.attention_mask, names.position_ids, *presents}
    unknown = [name for name in shapes if name not in known]
    if unknown:
        raise UnsupportedError(
            f"{where}: inputs without a known role: {', '.join(unknown)}; expected token ids, an attention mask, "
            "positions, and keys and values of layers"
        )
    caches = []
    for past, present in presents.items():
        if present not in results:
            raise UnsupportedError(f"{where}: input {past!r} has no result {present!r} that continues it")
        shape = shapes[past]
        lengths = [d.min if d.min == d.max else 0 for d in shape.dyn_dims()] if shape.dynamic() else shape.lens()
        if len(lengths) != 4:
            raise UnsupportedError(
                f"{where}: cache {past!r} has {len(lengths)} dimensions, expected 4: batch, heads, past, head size"
            )
        caches.append(
            CacheTensor(
                past, present, results.index(present), lengths[1] or heads, lengths[3] or size, _numpy_type(shape)
            )
        )
    return CompiledDecoder(
        program,
        names.input_ids,
        names.attention_mask if names.attention_mask in shapes else None,
        names.position_ids if names.position_ids in shapes else None,
        {name: _numpy_type(shape) for name, shape in shapes.items()},
        results.index(names.logits),
        tuple(caches),
        compact,
    )


def _numpy_type(public: object) -> np.dtype:
    """Return the NumPy type of a public shape's elements."""
    return unwrap_shape(public).type.numpy


def _presents(names: DecoderNames, parameters: Sequence[str]) -> dict[str, str]:
    """Return the result that continues each cache parameter, by parameter."""
    found = {}
    for past, present in zip(names.past, names.present, strict=True):
        pattern = re.compile(re.escape(past).replace("%d", r"(\d+)"))
        for name in parameters:
            match = pattern.fullmatch(name)
            if match is not None:
                found[name] = present.replace("%d", match[1]) if match.groups() else present
    return found
