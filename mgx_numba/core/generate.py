"""Deterministic pseudo-random tensors: MIGraphX's ``generate_argument`` (xorshf96, mode *legacy*), bit for bit."""

from __future__ import annotations

import numpy as np

from ..errors import ShapeError
from .argument import Argument
from .shape import Shape
from .types import Type

_MASK = (1 << 64) - 1  # 64 bits
_SEEDS = (123456789, 362436069, 521288629)  # Marsaglia's seeds of xorshf96, as in MIGraphX
_LANES = 1024
"""Generators that advance side by side in one NumPy operation, each from its own position of the sequence."""
_BITS = 192  # bits of the state: three 64-bit words


def generate(shape: Shape, seed: int = 0) -> Argument:
    """Return an argument with pseudo-random values in the shape's whole element space.

    For the generator's successive outputs ``z``: floats are ``-1 + (z % 32) / 16``, bools ``z % 2``, signed integers
    ``max / 2 - z % max`` and unsigned integers ``z % max`` with ``max = 2**(5 * bytes)``. For types that MIGraphX does
    not have: strings are the decimal digits of ``z % 32``, complex numbers are real floats, and e8m0 is ``2**(z % 32 -
    16)``. Signed integers below a byte are ``max / 2 - 1 - z % max``, with ``max = 2**bits``, which covers their range.

    Raises:
        ShapeError: the shape is dynamic.
    """
    if shape.sub_shapes:
        return Argument.from_tuple([generate(s, seed) for s in shape.sub_shapes])
    if shape.is_dynamic:
        raise ShapeError(f"cannot generate values for a dynamic shape: {shape}")
    z = _outputs(shape.element_space, seed)
    values: np.ndarray
    type = shape.type
    if type is Type.string_type:
        values = (z % np.uint64(32)).astype(str).astype(object)
    elif type is Type.fp8e8m0_type:
        values = np.exp2((z % np.uint64(32)).astype(np.float32) - 16).astype(type.numpy)
    elif type.is_floating or type in (Type.complex64_type, Type.complex128_type):
        values = (-1 + (z % np.uint64(32)).astype(np.float64) / 16).astype(type.numpy)
    elif type is Type.bool_type:
        values = (z % np.uint64(2)).astype(bool)
    else:
        limit = 1 << (type.bits if type.is_narrow else 5 * type.size)
        rest = (z % np.uint64(limit)).astype(np.int64)
        values = (limit // 2 - type.is_narrow - rest if type.is_signed else rest).astype(type.numpy)
    return Argument.from_flat(shape, values)


def _step(x: int, y: int, z: int) -> tuple[int, int, int]:
    x = (x ^ (x << 16)) & _MASK
    x ^= x >> 5
    x = (x ^ (x << 1)) & _MASK
    return y, z, x ^ y ^ z


def _outputs(count: int, seed: int) -> np.ndarray:
    """Return the generator's first ``count`` outputs; long sequences are computed in lanes that start far apart.

    The generator is linear over GF(2), so a jump ahead by any number of steps is a matrix product.
    """
    state = (_SEEDS[0], _SEEDS[1], (_SEEDS[2] ^ seed) & _MASK)
    if count <= 4 * _LANES:
        values = np.empty(count, np.uint64)
        for i in range(count):
            state = _step(*state)
            values[i] = state[2]
        return values
    stride = -(-count // _LANES)
    lanes = _lane_states(state, stride)
    x, y, z = (np.array([lane[k] for lane in lanes], np.uint64) for k in range(3))
    values = np.empty((_LANES, stride), np.uint64)
    for i in range(stride):
        x, y, z = _vector_step(x, y, z)
        values[:, i] = z
    return values.reshape(-1)[:count]


def _vector_step(x: np.ndarray, y: np.ndarray, z: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    x = x ^ (x << np.uint64(16))
    x = x ^ (x >> np.uint64(5))
    x = x ^ (x << np.uint64(1))
    return y, z, x ^ y ^ z


def _lane_states(state: tuple[int, int, int], stride: int) -> list[tuple[int, int, int]]:
    jump = _power(_one_step_matrix(), stride)
    bits = _to_bits(state)
    states = []
    for _ in range(_LANES):
        states.append(_from_bits(bits))
        bits = jump @ bits & 1
    return states


def _one_step_matrix() -> np.ndarray:
    columns = []
    for bit in range(_BITS):
        unit = [0, 0, 0]
        unit[bit // 64] = 1 << (bit % 64)
        columns.append(_to_bits(_step(unit[0], unit[1], unit[2])))
    return np.stack(columns, axis=1)


def _power(matrix: np.ndarray, exponent: int) -> np.ndarray:
    result = np.eye(_BITS, dtype=np.int64)
    while exponent:
        if exponent & 1:
            result = result @ matrix & 1
        matrix = matrix @ matrix & 1
        exponent >>= 1
    return result


def _to_bits(state: tuple[int, ...]) -> np.ndarray:
    return np.array([word >> bit & 1 for word in state for bit in range(64)], np.int64)


def _from_bits(bits: np.ndarray) -> tuple[int, int, int]:
    words = [sum(int(b) << i for i, b in enumerate(bits[64 * k : 64 * k + 64])) for k in range(3)]
    return words[0], words[1], words[2]
