"""Operators defined by the user, for ONNX models that contain them and for programs built by hand."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from ..core.shape import Shape
from ..errors import OperatorError
from ..ops.custom import CustomKernel, define, undefine
from .shape import shape

custom_kernel = CustomKernel


def register_custom_op(
    domain: str,
    name: str,
    *,
    scalar: Callable[..., object] | None = None,
    compute: Callable[..., object] | None = None,
    compute_shape: Callable[..., object] | None = None,
    cpu_kernel: Callable[..., CustomKernel | None] | None = None,
) -> None:
    """Define the operator ``domain::name`` in this process, for ``op("domain::name")`` and ONNX models.

    Pass either ``scalar``, or both ``compute`` and ``compute_shape``. Positional parameters of ``scalar`` and
    ``compute`` are the inputs. Keyword-only parameters are attributes; the default gives the kind: bool, int, float,
    str, or a tuple of ints or floats. ``compute_shape`` and ``cpu_kernel`` receive the attributes, too. All functions
    must be pure: constants are folded, and a function may be called any number of times, from any thread.

    Args:
        domain, name: domain and operator type of the ONNX node.
        scalar: the result for one element, as an expression of the inputs' elements in NumPy's notation, without ``if``
            (use ``np.where``). Functions compiled by Numba may be called. The operator is fused like any pointwise
            operator, on every target. In ONNX models the inputs are broadcast to common lengths; they may have any
            types.
        compute: the results (one array, or a tuple of arrays) for input arrays of any strides, which it must not write.
        compute_shape: the result's `shape`, or a list of shapes for several results, from the inputs' static shapes.
        cpu_kernel: maps the list of input shapes and the list of result shapes to the `custom_kernel` that computes the
            operator on the target ``cpu``. ``None`` falls back to ``compute``, which every other target uses.

    Raises:
        OperatorError: the name is taken, or the functions do not meet these requirements.
    """
    if (scalar is None) == (compute is None):
        raise OperatorError(f"{domain}::{name}: give scalar, or compute and compute_shape")
    if (compute is None) != (compute_shape is None) or (scalar is not None and cpu_kernel is not None):
        raise OperatorError(f"{domain}::{name}: compute comes with compute_shape, scalar with nothing else")

    for given in (compute_shape, cpu_kernel):
        if given is not None and not callable(given):
            raise OperatorError(f"{domain}::{name}: a function is needed, got {given!r}")

    def rule(*inputs: Shape, **attributes: object) -> object:
        assert compute_shape is not None
        found = compute_shape(*map(shape.wrap, inputs), **attributes)
        return [_unwrapped(s) for s in found] if isinstance(found, (tuple, list)) else _unwrapped(found)

    def kernel(inputs: Sequence[Shape], outputs: Sequence[Shape], **attributes: object) -> Any:
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
    """Remove a custom operator so that its name can be registered again; programs that contain the operator keep it.

    Raises:
        OperatorError: no custom operator has this name.
    """
    undefine(domain, name)


def _unwrapped(found: object) -> object:
    return found._value if isinstance(found, shape) else found
