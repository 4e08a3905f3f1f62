"""Compute all floats in double, for a reference without rounding errors of its own."""

from __future__ import annotations

from ...core.types import Type
from ..module import Module
from ..program import Program
from .autocast_fp8 import FLOAT8
from .base import Options, Pass
from .eliminate_data_type import Widening

NARROW = frozenset({Type.float_type, Type.half_type, Type.bf16_type}) | FLOAT8


class UseDouble(Pass):
    """``op(x: float) -> convert[float](op(convert[double](x)))``, reusing the double form of each value.

    Parameters and results keep their types. Values are rounded to them only there, and for operators that are not
    converted (control flow, random numbers).
    """

    name = "use_double"

    def apply(self, program: Program, module: Module, options: Options) -> None:
        Widening(module, True, NARROW, NARROW, Type.double_type).run()
