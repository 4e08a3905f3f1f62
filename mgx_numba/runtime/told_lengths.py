"""Symbolic plans of which some symbols are known outside of them alone, such as the plan of a branch.

Each symbol of a plan has to be the length of a parameter's axis, so such a symbol gets a parameter without elements.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import numpy as np

from ..core.dim import Dim
from .plan import ParameterSpec, Plan

__all__ = ["told_lengths", "with_told_lengths"]


def with_told_lengths(plan: Plan) -> Plan:
    """Return the plan with one more parameter, of shape ``(symbol, 0)``, for each symbol that no parameter has."""
    own = {id(length) for parameter in plan.parameters for length in parameter.lens}
    missing = [symbol for symbol in plan.symbols if id(symbol) not in own]
    added = [ParameterSpec(_name(symbol), "bool", (symbol, 0)) for symbol in missing]  # type: ignore[arg-type]
    return replace(plan, parameters=[*plan.parameters, *added])


def told_lengths(plan: Plan, values: Mapping[Dim, int]) -> dict[str, np.ndarray]:
    """Return the arrays of the parameters that `with_told_lengths` added, for values of the symbols."""
    names = {parameter.name for parameter in plan.parameters}
    arrays = {_name(symbol): np.empty((values[symbol], 0), np.bool_) for symbol in plan.symbols}
    return {name: array for name, array in arrays.items() if name in names}


def _name(symbol: Dim) -> str:
    return f"length {symbol}"
