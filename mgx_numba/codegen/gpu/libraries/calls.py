"""Calls of libraries in a plan: as text that tells all of a call but its addresses, and what makes the call.

In a plan a call stands where a kernel does, and its argument block has the addresses of its operands. An engine of
NVIDIA's loads it as it loads kernels, and captures it where it records.
"""

from __future__ import annotations

import functools
import json
from collections.abc import Mapping, Sequence
from typing import Any, Protocol

import numpy as np

from ....errors import DeviceError
from ...kernel import KernelSource
from ...launch import Launch, OneCall, Operand
from ..kernel import NAME

__all__ = ["BoundCall", "LibraryCall", "bound_call", "call_launch", "described"]


class LibraryCall(Protocol):
    """A call with all that does not depend on addresses made ready, on one device."""

    def enqueue(self, addresses: Mapping[str, int], stream: int) -> None:
        """Ask a stream of the current context's device for the call; any thread may.

        Raises:
            DeviceError: the library refuses.
        """


class BoundCall:
    """A library's call whose operands come in an argument block."""

    def __init__(self, call: LibraryCall, operands: Sequence[str]) -> None:
        self._call, self._operands = call, tuple(operands)

    def enqueue(self, words: np.ndarray, stream: int) -> None:
        """See `LibraryCall.enqueue`; ``words`` are the operands' addresses, int64, in order."""
        self._call.enqueue(dict(zip(self._operands, words.tolist())), stream)


def call_launch(
    library: str,
    name: str,
    unit: str,
    fields: Mapping[str, Any],
    operands: Mapping[str, Operand],
    flops: int,
    bytes: int,
) -> Launch:
    """The launch of a library's call.

    Args:
        library: ``cublaslt`` or ``cudnn``.
        name: for readers.
        unit: what multiplies, see `Backend.unit`.
        fields: JSON values by which `bound_call` makes the call again.
        operands: by the names that the call has for them.
    """
    text = json.dumps({"library": library, "unit": unit, "operands": list(operands), **fields}, sort_keys=True)
    return Launch(KernelSource(NAME, name, text), tuple(operands.values()), OneCall(), flops, bytes)


def described(kernel: KernelSource) -> dict[str, Any] | None:
    """What a kernel says of the call that it is; None of one that is none: their text is Python."""
    return json.loads(kernel.text) if kernel.text.startswith("{") else None


@functools.lru_cache(maxsize=1024)
def bound_call(kernel: KernelSource, number: int) -> BoundCall:
    """The call that a kernel is, on the device of this number, which is the current one; the last ones are kept.

    Raises:
        DeviceError: the library is not there, is of another version, or refuses.
    """
    from .convolutions import ConvolutionCall
    from .cublaslt import MatmulCall

    fields = described(kernel)
    kinds: dict[str, Any] = {"cublaslt": MatmulCall, "cudnn": ConvolutionCall}
    if fields is None or fields["library"] not in kinds:
        raise DeviceError(f"{kernel.name} is no call of a library that is known ({', '.join(kinds)})")
    return BoundCall(kinds[fields["library"]].described(fields, number), fields["operands"])
