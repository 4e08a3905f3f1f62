"""Linear attention: a recurrent state in the place of a cache of keys and values."""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar

import numpy as np

from ..core.dim import known_equal
from ..core.shape import Shape
from ..dataclass import dataclass
from .base import Operator, register
from .dims import meet_dim


@register
@dataclass(frozen=True)
class LinearAttention(Operator):
    """The recurrence ``S = exp(g) * S; S += k (beta * (v - S^T k))^T; o = scale * S^T q`` over tokens: a tuple of the
    results o [b, h, t, e] and the last state [b, hk, d, e].

    Inputs, all of the same type; hk divides h:

    - q [b, h, t, d], k [b, hk, t, d], v [b, hk, t, e]
    - the state S [b, hk, d, e]
    - the decay's logarithm g [b, hk, t, d or 1]
    - beta [b, hk, t, 1]

    Without ``retrieves`` the term ``S^T k`` is left out.
    """

    name: ClassVar[str] = "linear_attention"
    scale: float = 1.0
    retrieves: bool = True

    def compute_shape(self, inputs: Sequence[Shape]) -> Shape:
        self.expect_inputs(inputs, 6)
        self.expect_same_type(inputs)
        if any(s.ndim != 4 for s in inputs):
            raise self.fail(f"all inputs need 4 axes, got {'; '.join(map(str, inputs))}")
        q, k, v, state, decay, beta = inputs
        for what, axis, shapes in (
            ("batch lengths", 0, inputs),
            ("tokens", 2, (q, k, v, decay, beta)),
            ("heads of keys", 1, (k, v, state, decay, beta)),
            ("features of q and k", 3, (q, k)),
        ):
            meet_dim(self, what, *(s.dims[axis] for s in shapes))
        meet_dim(self, "features of keys and state", k.dims[3], state.dims[2])
        meet_dim(self, "features of values and state", v.dims[3], state.dims[3])
        heads, shared = q.dims[1].max, k.dims[1].max
        if shared < 1 or heads % shared or not (known_equal(beta.dims[3].max, 1)):
            raise self.fail(
                f"{shared} heads of the state do not divide {heads} heads, or beta has {beta.dims[3]} numbers"
            )
        return Shape.tuple([Shape.dynamic(q.type, [*q.dims[:3], v.dims[3]]), Shape.dynamic(q.type, state.dims)])

    def compute(self, output: Shape, args: Sequence[np.ndarray]) -> tuple[np.ndarray, ...]:
        q, k, v, state, decay, beta = (a.astype(np.result_type(a.dtype, np.float32), copy=False) for a in args)
        (b, h, t, d), shared, e = q.shape, k.shape[1], v.shape[3]
        grouped = q.reshape(b, shared, h // shared, t, d)
        factor = np.exp(decay)
        made = np.empty((b, shared, h // shared, t, e), q.dtype)
        for i in range(t):
            state = state * factor[:, :, i, :, None]
            key = k[:, :, i]
            new = v[:, :, i]
            if self.retrieves:
                new = new - np.matmul(key[:, :, None], state)[:, :, 0]
            state = state + key[..., None] * (beta[:, :, i] * new)[:, :, None]
            made[:, :, :, i] = np.matmul(grouped[:, :, :, i], state) * q.dtype.type(self.scale)
        kind = output.sub_shapes[0].type.numpy
        return made.reshape(b, h, t, e).astype(kind), np.ascontiguousarray(state).astype(kind)

    def flops(self, output: Shape, inputs: Sequence[Shape]) -> int:
        b, h, t, d = inputs[0].max_lens
        return 6 * b * h * t * d * inputs[2].max_lens[3]
