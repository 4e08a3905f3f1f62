"""Atomic updates of device memory, by which threads combine values with one element in no fixed order."""

from __future__ import annotations

from collections.abc import Callable

from llvmlite import ir

from ...lang.arith import emit_max, emit_min, emit_mul
from ...lang.builder import VectorBuilder
from ...lang.memory import storer
from ...lang.vector import KernelFunction
from ...toolchain.numba_core import TypingError
from .threads import effect, target

_PTX = {
    "float32": ("f32", "f"), "float64": ("f64", "d"), "int32": ("s32", "r"), "uint32": ("u32", "r"),
    "int64": ("u64", "l"), "uint64": ("u64", "l"),
}  # fmt: skip
"""For each dtype PTX's type of ``red.add`` and the constraint of its register: PTX ISA, "red". Sums of 64-bit integers
have the same bits with and without a sign."""
_VECTORS = (2, 4)
"""Lanes of float32 that one ``red.add`` takes from compute capability 9.0 on: PTX ISA, "red", ``.vec_32_bit``."""

Emit = Callable[[VectorBuilder, str, ir.Value, ir.Value], None]


def _each(name: str, emit: Emit) -> KernelFunction:
    """Make ``emit``, which updates one element, a kernel function of adjacent elements."""

    def update(b: VectorBuilder, dtype: str, p: ir.Value, i: ir.Value, v: ir.Value) -> None:
        if dtype not in _PTX:
            raise TypingError(f"{name}: expected a pointer to {', '.join(_PTX)}, got one to {dtype}")
        lanes = b.lanes(v)
        if name == "atomic_add" and dtype == "float32" and lanes in _VECTORS and target().vector_atomics:
            _add_vector(b, b.ir.gep(p, [i]), v)
            return
        for lane in range(lanes):
            emit(b, dtype, b.ir.gep(p, [b.iadd(i, lane)]), b.extract(v, lane))

    return storer(name, 3, 2, update)


def _add_vector(b: VectorBuilder, place: ir.Value, v: ir.Value) -> None:
    """Add float32 lanes to adjacent elements of the device's memory, aligned to the vector, by one instruction."""
    lanes = b.lanes(v)
    names = ", ".join(f"${k + 1}" for k in range(lanes))
    text = (
        f"{{ .reg .u64 %at; cvta.to.global.u64 %at, $0; red.relaxed.gpu.global.add.v{lanes}.f32 [%at], {{{names}}}; }}"
    )
    effect(b.ir, text, ",".join(["l", *["f"] * lanes]), [place, *(b.extract(v, lane) for lane in range(lanes))])


def _add(b: VectorBuilder, dtype: str, place: ir.Value, x: ir.Value) -> None:
    kind, register = _PTX[dtype]
    if target().nvidia:
        effect(b.ir, f"red.relaxed.gpu.add.{kind} [$0], $1;", f"l,{register}", [place, x])
    else:
        b.ir.atomic_rmw("fadd" if dtype.startswith("float") else "add", place, x, "monotonic")


def _by_exchange(combine: Callable[..., ir.Value]) -> Emit:
    """Return the update of an element that exchanges its bits until no other thread has changed them meanwhile."""

    def emit(b: VectorBuilder, dtype: str, place: ir.Value, x: ir.Value) -> None:
        builder, width = b.ir, b.width(x)
        bits = ir.IntType(width)
        cell = builder.bitcast(place, bits.as_pointer())
        first = builder.load_atomic(cell, "monotonic", width // 8)
        begun = builder.block
        loop, change, done = (builder.append_basic_block(f"exchange.{part}") for part in ("try", "change", "end"))
        builder.branch(loop)
        builder.position_at_end(loop)
        seen = builder.phi(bits)
        seen.add_incoming(first, begun)
        wanted = builder.bitcast(combine(b.strict(), dtype, builder.bitcast(seen, x.type), x), bits)
        builder.cbranch(builder.icmp_unsigned("==", wanted, seen), done, change)
        builder.position_at_end(change)
        found = builder.cmpxchg(cell, seen, wanted, "monotonic", "monotonic")
        seen.add_incoming(builder.extract_value(found, 0), change)
        builder.cbranch(builder.extract_value(found, 1), done, loop)
        builder.position_at_end(done)

    return emit


atomic_add = _each("atomic_add", _add)
atomic_mul = _each("atomic_mul", _by_exchange(emit_mul))
atomic_min = _each("atomic_min", _by_exchange(emit_min))
atomic_max = _each("atomic_max", _by_exchange(emit_max))
