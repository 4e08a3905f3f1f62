"""Operators of the user's own, for models that have them and for programs built by hand."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from ..core.shape import Shape
from ..errors import OperatorError
from ..ops.custom import CustomKernel, define, undefine
from .shape import shape

__all__ = ["custom_kernel", "register_custom_op", "unregister_custom_op"]

custom_kernel = CustomKernel


def register_custom_op(
    domain: str,
    name: str,
    *,
    scalar: Callable[..., Any] | None = None,
    compute: Callable[..., Any] | None = None,
    compute_shape: Callable[..., Any] | None = None,
    cpu_kernel: Callable[..., CustomKernel | None] | None = None,
) -> None:
    """Make the operator ``domain::name`` known in this process; ``op("domain::name")`` and ONNX models then have it.

    Either ``scalar``, or ``compute`` and ``compute_shape``, are given. Positional parameters of ``scalar`` and
    ``compute`` are the inputs, keyword-only ones attributes, whose defaults say what kind they are of (bool, int,
    float, str, a tuple of ints or floats); attributes are passed to the others, too. All must be pure functions: they
    may be called at any time, any number of times, from any thread, and constants are folded.

    Args:
        domain, name: as in an ONNX node.
        scalar: the result for one element, as an expression of the inputs' elements in NumPy's notation, without
            ``if`` (``np.where``); Numba's functions will do. It is fused like any pointwise operator, on every target.
            Inputs have one length each after broadcasting in ONNX models, and any types.
        compute: the results (one array, or a tuple of them) for arrays of any strides, which it must not write.
        compute_shape: the result's `shape` for those of the inputs, which have fixed lengths; a list for several.
        cpu_kernel: for the shapes of the inputs and the results, each a list, the `custom_kernel` that computes the
            operator on the target ``cpu``; ``None`` leaves it to ``compute``, which every other target uses.

    Raises:
        OperatorError: the name is taken, or the functions do not fit what is said here.
    """
    if (scalar is None) == (compute is None):
        raise OperatorError(f"{domain}::{name}: give scalar, or compute and compute_shape")
    if (compute is None) != (compute_shape is None) or (scalar is not None and cpu_kernel is not None):
        raise OperatorError(f"{domain}::{name}: compute comes with compute_shape, scalar with nothing else")

    for given in (compute_shape, cpu_kernel):
        if given is not None and not callable(given):
            raise OperatorError(f"{domain}::{name}: a function is needed, got {given!r}")

    def rule(*inputs: Shape, **attributes: Any) -> Any:
        assert compute_shape is not None
        found = compute_shape(*map(shape.wrap, inputs), **attributes)
        return [_unwrapped(s) for s in found] if isinstance(found, (tuple, list)) else _unwrapped(found)

    def kernel(inputs: Sequence[Shape], outputs: Sequence[Shape], **attributes: Any) -> Any:
        assert cpu_kernel is not None
        return cpu_kernel(list(map(shape.wrap, inputs)), list(map(shape.wrap, outputs)), **attributes)

    define(
        domain,
        name,
        scalar=getattr(scalar, "py_func", scalar),
        function=compute,
        rule=rule,
        kernel=None if cpu_kernel is None else kernel,
    )


def unregister_custom_op(domain: str, name: str) -> None:
    """Forget a custom operator, so that another one may have its name; programs that have it keep it.

    Raises:
        OperatorError: there is none of this name.
    """
    undefine(domain, name)


def _unwrapped(found: Any) -> Any:
    return found._value if isinstance(found, shape) else found
