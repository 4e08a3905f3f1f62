"""probe"""

from __future__ import annotations

from typing import Any

import numpy as np

from ..core.dim import Dim, Scope
from .folding import Constants
from .program import Program
from .specialize import Settling


class _Constants(Constants):
    def __init__(self, program, values):
        super().__init__(program.allowance)
        self.symbolic = values

    def _literal(self, literal):
        own = self.symbolic.get(id(literal))
        return literal.numpy() if own is None else own


class Symbolic(Settling):
    def __init__(self, lens):
        super().__init__(lens, {})
        self.symbolic: dict[int, Any] = {}
        self.constants = _Constants(self.program, self.symbolic)

    def _literal(self, ins, value, target):
        if value.dtype == object and any(isinstance(v, Dim) for v in value.flat):
            made = super()._literal(ins, np.zeros(value.shape, np.int64), target)
            self.symbolic[id(made.literal)] = value
            return made
        if value.dtype == object:
            value = value.astype(np.int64)
        return super()._literal(ins, value, target)

    def _lengths(self, ins, lens, target):
        own = list(lens[ins.op.start : ins.op.end])
        a = np.empty(len(own), object)
        a[:] = own
        return self._literal(ins, a, target)


def symbolic(program: Program):
    scope = Scope()
    known = {}
    lens = {}
    primes = iter((37, 41, 43, 47, 53, 59, 61, 67, 71, 73, 79))
    for name, shape in program.parameter_shapes().items():
        if not shape.is_dynamic:
            continue
        dims = []
        for k, d in enumerate(shape.dims):
            if d.is_fixed:
                dims.append(d.min)
                continue
            key = d.symbol or f"{name}.{k}"
            if key not in known:
                high = None if d.max > 1 << 40 else d.max
                h = next(primes)
                known[key] = scope.symbol(
                    key, max(1, d.min), high, h if high is None or h <= high else max(d.min, min(high, h % (high + 1)))
                )
            dims.append(known[key])
        lens[name] = dims
    made = Symbolic(lens)
    return scope, made.copy(program), made
