"""Warpgroup MMA from shared memory (sm_90a).

PTX ISA, "Asynchronous Warpgroup Level Matrix Instructions". A warpgroup is four consecutive warps, aligned to four.
Accumulators have 64 rows: thread t holds rows r = 16 (t // 32) + t % 32 // 4 and r + 8, and of each 8 columns 2 (t % 4)
and the next; row r's two before row r + 8's. A left operand in registers has the same layout, one word per two 16-bit
elements. `codegen.gpu.products` has types and names.
"""

from __future__ import annotations

from collections.abc import Sequence

from llvmlite import ir

from ...lang.target import itemsize
from ...lang.vector import (
    Definition,
    KernelFunction,
    Values,
    Vec,
    constant_int,
    describe,
    kernel_function,
    literal_function,
    make_intrinsic,
    pointer_dtype,
)
from ...toolchain.numba_core import TypingError, models, register_model, types
from ..products import PRODUCTS, Product
from .mbarriers import shared_address
from .threads import call, effect, elements, expect, shuffled, target, vector_of

_I32, _I64, _F32 = ir.IntType(32), ir.IntType(64), ir.FloatType()
_NUMBERS = {"float32": _F32, "int32": _I32}
_REGISTERS = {"float32": "f", "int32": "r"}
"""Inline assembly constraint by accumulator type."""
_TYPES = {"float32": "f32", "int32": "s32"}
"""PTX type by accumulator type."""
MOST_COLUMNS = 256
"""Most columns per instruction."""
SLICE_BYTES = 128
"""Bytes of K per call: a swizzled row."""
STEP_BYTES = 32
"""Bytes of K per instruction."""
_LAYOUT_128 = 1 << 62  # PTX ISA, "Matrix descriptor": swizzled by 128 bytes
_GROUP = 1024 >> 4 << 32
"""Stride between groups of eight rows, in 16-byte units, at bit 32 of the descriptor."""
_FEATURE = "90a"
STEP_WORDS = 4
"""Words of a register left operand per instruction."""
MOST_WORDS = STEP_WORDS * SLICE_BYTES // STEP_BYTES
"""Most words of a register left operand: 128 bytes of K."""
MOST_CHAINS = 4
"""Independent chains in the sum of zero times accumulators."""
MOST_ROW_LANES = 16
"""Most elements of a thread's row vector: as many 8-bit results are stored at once."""


class WarpgroupSums(types.Type):
    """A thread's accumulators of ``columns`` columns: ``columns / 2`` numbers, float32 or int32."""

    def __init__(self, columns: int, dtype: str) -> None:
        self.columns = columns
        self.dtype = dtype
        super().__init__(name=f"sums({dtype}, {columns})")

    @property
    def count(self) -> int:
        """Return the accumulators per thread."""
        return self.columns // 2


@register_model(WarpgroupSums)
class _SumsModel(models.PrimitiveModel):
    def __init__(self, manager: object, sums: WarpgroupSums) -> None:
        super().__init__(manager, sums, ir.LiteralStructType([_NUMBERS[sums.dtype]] * sums.count))


def _zero(name: str, dtype: str) -> KernelFunction:
    def define(columns: types.Type) -> Definition:
        made = WarpgroupSums(_columns_of(name, columns), dtype)

        def emit(builder: ir.IRBuilder, values: Values) -> ir.Value:
            return ir.Constant(ir.LiteralStructType([_NUMBERS[dtype]] * made.count), None)

        return made(columns), emit

    return make_intrinsic(name, define, literal=True)


def _expect_sums(name: str, sums: types.Type) -> WarpgroupSums:
    if not isinstance(sums, WarpgroupSums):
        raise TypingError(f"{name}: expected what wgmma_zero gives, got {sums}")
    return sums


def _check_target(name: str) -> None:
    expect(name, target().name.endswith(_FEATURE))


def _members(builder: ir.IRBuilder, sums: ir.Value) -> list[ir.Value]:
    return [builder.extract_value(sums, k) for k in range(len(sums.type.elements))]


def _descriptor(builder: ir.IRBuilder, pointer: ir.Value, across: int) -> ir.Value:
    """Return the matrix descriptor of an operand in 128-byte rows; ``across`` is the stride (bytes) between groups of
    64 columns."""
    address = builder.zext(builder.lshr(builder.and_(shared_address(builder, pointer), _I32(0x3FFFF)), _I32(4)), _I64)
    return builder.or_(address, _I64(_LAYOUT_128 | _GROUP | (across >> 4) << 16))


def _columns_of(name: str, columns: types.Type) -> int:
    """Return the value of a COLUMNS literal."""
    wanted = constant_int(name, "COLUMNS", columns, low=8, high=MOST_COLUMNS)
    if wanted % 8:
        raise TypingError(f"{name}: COLUMNS must be a multiple of 8, got {wanted}")
    return wanted


def _expect_held(name: str, sums: types.Type, product: Product) -> WarpgroupSums:
    held = _expect_sums(name, sums)
    if held.dtype != product.accumulator:
        raise TypingError(f"{name}: sums are {product.accumulator}, got {held}")
    return held


def _across(name: str, turned: types.Type, product: Product) -> int:
    across = constant_int(name, "TURNED", turned, high=1)
    if across and product.size != 2:
        raise TypingError(f"{name}: no instruction takes turned columns of {product.b}")
    return across


def _steps(name: str, steps: types.Type) -> int:
    return constant_int(name, "STEPS", steps, low=1, high=SLICE_BYTES // STEP_BYTES)


def _issue(
    builder: ir.IRBuilder, product: Product, sums: ir.Value | WarpgroupSums, left: Sequence[Sequence[ir.Value]],
    b: ir.Value, across: int,
) -> ir.Value:  # fmt: skip
    """Emit the instructions of 128 bytes of K.

    Args:
        left: per instruction a descriptor, or four words.
        sums: the accumulators, or only their type to start from 0.
    """
    size, accumulator = product.size, product.accumulator
    depth = STEP_BYTES // size
    count = sums.count if isinstance(sums, WarpgroupSums) else len(sums.type.elements)
    register, kind = _REGISTERS[accumulator], ir.LiteralStructType([_NUMBERS[accumulator]] * count)
    kept = ", ".join(f"${k}" for k in range(count))
    signs = "" if accumulator == "int32" else ", 1, 1"
    right = _descriptor(builder, b, SLICE_BYTES // size * SLICE_BYTES if across else 16)
    made: ir.Value | None = None if isinstance(sums, WarpgroupSums) else sums
    for step, own in enumerate(left):
        before = [] if made is None else _members(builder, made)
        first = count + len(before)
        words = [f"${first + k}" for k in range(len(own))]
        a = words[0] if len(own) == 1 else f"{{{', '.join(words)}}}"
        layouts = "" if size != 2 else f", 0, {across}" if len(own) == 1 else f", {across}"
        text = (
            f"wgmma.mma_async.sync.aligned.m64n{2 * count}k{depth}.{_TYPES[accumulator]}.{product.kind} "
            f"{{{kept}}}, {a}, ${first + len(own)}, {int(made is not None)}{signs}{layouts};"
        )
        further = depth * SLICE_BYTES if across else STEP_BYTES
        operands = [*before, *own, builder.add(right, _I64(step * further >> 4))]
        ties = [f"={register}"] * count + [str(k) for k in range(len(before))]
        ties += ["l"] if len(own) == 1 else ["r"] * len(own)
        made = effect(builder, text, ",".join([*ties, "l"]), operands, kind)
    return made


def _left_descriptors(builder: ir.IRBuilder, a: ir.Value, steps: int) -> list[list[ir.Value]]:
    """Return the descriptors of a call's instructions for a left operand in shared memory."""
    left = _descriptor(builder, a, 16)
    return [[builder.add(left, _I64(step * STEP_BYTES >> 4))] for step in range(steps)]


def _wgmma(name: str, product: Product) -> KernelFunction:
    def define(sums: types.Type, a: types.Type, b: types.Type, turned: types.Type, steps: types.Type) -> Definition:
        held = _expect_held(name, sums, product)
        _expect_operands(name, product, a, b)
        across, count = _across(name, turned, product), _steps(name, steps)

        def emit(builder: ir.IRBuilder, values: Values) -> ir.Value:
            _check_target(name)
            return _issue(builder, product, values[0], _left_descriptors(builder, values[1], count), values[2], across)

        return held(held, a, b, turned, steps), emit

    return make_intrinsic(name, define, literal=True)


def _wgmma_first(name: str, product: Product) -> KernelFunction:
    def define(columns: types.Type, a: types.Type, b: types.Type, turned: types.Type, steps: types.Type) -> Definition:
        made = WarpgroupSums(_columns_of(name, columns), product.accumulator)
        _expect_operands(name, product, a, b)
        across, count = _across(name, turned, product), _steps(name, steps)

        def emit(builder: ir.IRBuilder, values: Values) -> ir.Value:
            _check_target(name)
            return _issue(builder, product, made, _left_descriptors(builder, values[1], count), values[2], across)

        return made(columns, a, b, turned, steps), emit

    return make_intrinsic(name, define, literal=True)


def _expect_operands(name: str, product: Product, a: types.Type, b: types.Type) -> None:
    if (pointer_dtype(name, a), pointer_dtype(name, b)) != (product.a, product.b):
        raise TypingError(f"{name}: expected pointers to {product.a} and {product.b}, got {a} and {b}")


def _wgmma_held(name: str, product: Product) -> KernelFunction:
    def define(sums: types.Type, words: types.Type, b: types.Type, turned: types.Type) -> Definition:
        held = _expect_held(name, sums, product)
        _expect_words(name, words)
        if pointer_dtype(name, b) != product.b:
            raise TypingError(f"{name}: expected a pointer to {product.b}, got {b}")
        across = _across(name, turned, product)

        def emit(builder: ir.IRBuilder, values: Values) -> ir.Value:
            _check_target(name)
            lanes = elements(builder, values[1])
            left = [lanes[k : k + STEP_WORDS] for k in range(0, len(lanes), STEP_WORDS)]
            return _issue(builder, product, values[0], left, values[2], across)

        return held(held, words, b, turned), emit

    return make_intrinsic(name, define, literal=True)


def _expect_words(name: str, words: types.Type) -> None:
    lanes = words.lanes if isinstance(words, Vec) and words.dtype == "int32" else 0
    if not lanes or lanes % STEP_WORDS or lanes > MOST_WORDS:
        raise TypingError(f"{name}: a left operand is up to {MOST_WORDS} int32 in steps of {STEP_WORDS}, got {words}")


@kernel_function
def wgmma_keep(words: types.Type) -> Definition:
    _expect_words("wgmma_keep", words)

    def emit(builder: ir.IRBuilder, values: Values) -> None:
        operands = elements(builder, values[0])
        effect(builder, "", ",".join("r" * len(operands)), operands)

    return types.void(words), emit


def _plain(name: str, text: str) -> KernelFunction:
    def define() -> Definition:
        def emit(builder: ir.IRBuilder, values: Values) -> None:
            _check_target(name)
            effect(builder, text)

        return types.void(), emit

    return make_intrinsic(name, define)


@literal_function
def wgmma_wait(sums: types.Type, pending: types.Type) -> Definition:
    held, groups = _expect_sums("wgmma_wait", sums), constant_int("wgmma_wait", "PENDING", pending, high=7)

    def emit(builder: ir.IRBuilder, values: Values) -> ir.Value:
        _check_target("wgmma_wait")
        text = f"wgmma.wait_group.sync.aligned {groups};"
        ties = ",".join([*[f"={_REGISTERS[held.dtype]}"] * held.count, *map(str, range(held.count))])
        return effect(builder, text, ties, _members(builder, values[0]), values[0].type)

    return held(held, pending), emit


@literal_function
def sums_part(sums: types.Type, number: types.Type) -> Definition:
    held = _expect_sums("sums_part", sums)
    first = 4 * constant_int("sums_part", "PART", number, high=held.columns // 8 - 1)

    def emit(builder: ir.IRBuilder, values: Values) -> ir.Value:
        return vector_of(builder, [builder.extract_value(values[0], first + k) for k in range(4)])

    return Vec(held.dtype, 4)(held, number), emit


def _exchange(
    builder: ir.IRBuilder, odd: ir.Value, mask: int, pairs: list[list[ir.Value]], near: int, far: int
) -> None:
    """Exchange accumulators between neighbouring threads: the even thread gets all ``near`` ones, the odd thread all
    ``far`` ones; ``near`` then comes from the even thread."""
    for k, (a, b) in enumerate(zip(pairs[near], pairs[far])):
        come = shuffled(builder, builder.select(odd, a, b), mask)
        pairs[near][k], pairs[far][k] = builder.select(odd, come, a), builder.select(odd, b, come)


def _neighbours(builder: ir.IRBuilder, pairs: list[list[ir.Value]]) -> list[ir.Value]:
    """Exchange column pairs, one per piece of eight columns, among four threads, so that each thread holds neighbouring
    columns in order."""
    pieces = len(pairs)
    bits = min(2, pieces.bit_length() - 1)
    lane = call(builder, "llvm.nvvm.read.ptx.sreg.tid.x", _I32)
    for bit in range(bits):
        odd = builder.icmp_unsigned("!=", builder.and_(lane, _I32(1 << bit)), _I32(0))
        apart = pieces >> bits << bit
        for near in range(pieces):
            if not near & apart:
                _exchange(builder, odd, 1 << bit, pairs, near, near + apart)
    rest = pieces >> bits
    return [x for k in range(rest) for own in pairs[k::rest] for x in own]


def _row(name: str, exchanged: bool) -> KernelFunction:
    def define(sums: types.Type, row: types.Type, number: types.Type, lanes: types.Type) -> Definition:
        held, half = _expect_sums(name, sums), constant_int(name, "ROW", row, high=1)
        wide = constant_int(name, "LANES", lanes, low=2, high=MOST_ROW_LANES)
        if wide & (wide - 1) or held.columns % (4 * wide):
            raise TypingError(f"{name}: no rows of {held} are {wide} lanes of each thread")
        part = constant_int(name, "PART", number, high=held.columns // (4 * wide) - 1)
        pieces = wide // 2  # of eight columns, of which each of four threads has a pair

        def emit(builder: ir.IRBuilder, values: Values) -> ir.Value:
            pairs = [
                [builder.extract_value(values[0], 4 * (part * pieces + j) + 2 * half + k) for k in (0, 1)]
                for j in range(pieces)
            ]
            return vector_of(builder, _neighbours(builder, pairs) if exchanged else [x for own in pairs for x in own])

        return Vec(held.dtype, wide)(held, row, number, lanes), emit

    return make_intrinsic(name, define, literal=True)


@kernel_function
def row_of_turns(x: types.Type) -> Definition:
    dtype, lanes = describe("row_of_turns", x)
    if itemsize(dtype) != 2 or lanes not in (2, 4, 8, 16):
        raise TypingError(f"row_of_turns: expected 2, 4, 8 or 16 lanes of 16 bits, got {x}")

    def emit(builder: ir.IRBuilder, values: Values) -> ir.Value:
        words = builder.bitcast(values[0], ir.VectorType(_I32, lanes // 2))
        found = _neighbours(builder, [[builder.extract_element(words, _I32(k))] for k in range(lanes // 2)])
        return builder.bitcast(vector_of(builder, found), values[0].type)

    return x(x), emit


@kernel_function
def add_sums(sums: types.Type, more: types.Type) -> Definition:
    held = _expect_sums("add_sums", sums)
    if more != held or held.dtype != "float32":
        raise TypingError(f"add_sums: expected float32 sums of as many columns twice, got {sums} and {more}")

    def emit(builder: ir.IRBuilder, values: Values) -> ir.Value:
        result = values[0]
        for k, (a, b) in enumerate(zip(*(_members(builder, value) for value in values))):
            result = builder.insert_value(result, builder.fadd(a, b), k)
        return result

    return held(held, held), emit


@kernel_function
def finite_sums(sums: types.Type) -> Definition:
    held = _expect_sums("finite_sums", sums)
    if held.dtype != "float32":
        raise TypingError(f"finite_sums: expected float32 sums, got {sums}")

    def emit(builder: ir.IRBuilder, values: Values) -> ir.Value:
        zero = ir.Constant(_F32, 0.0)
        chains = [zero] * MOST_CHAINS
        for k, number in enumerate(_members(builder, values[0])):  # zero times what is not finite is NaN
            operands = [number, zero, chains[k % MOST_CHAINS]]
            chains[k % MOST_CHAINS] = call(builder, "llvm.fma.f32", _F32, operands)
        total = chains[0]
        for chain in chains[1:]:
            total = builder.fadd(total, chain)
        return builder.zext(builder.fcmp_ordered("ord", total, total), ir.IntType(32))

    return types.int32(held), emit


@kernel_function
def scale_sums(sums: types.Type, x: types.Type, y: types.Type) -> Definition:
    held = _expect_sums("scale_sums", sums)
    if (held.dtype, x, y) != ("float32", types.float32, types.float32):
        raise TypingError(f"scale_sums: expected float32 sums and two float32, got {sums}, {x} and {y}")

    def emit(builder: ir.IRBuilder, values: Values) -> ir.Value:
        result = values[0]
        for k, number in enumerate(_members(builder, values[0])):
            result = builder.insert_value(result, builder.fmul(number, values[1 + k // 2 % 2]), k)
        return result

    return held(held, x, y), emit


@kernel_function
def fma_sums(sums: types.Type, x: types.Type, y: types.Type, more: types.Type) -> Definition:
    held = _expect_sums("fma_sums", sums)
    if (held.dtype, x, y, more) != ("float32", types.float32, types.float32, held):
        raise TypingError(f"fma_sums: expected float32 sums twice and two float32, got {sums}, {x}, {y} and {more}")

    def emit(builder: ir.IRBuilder, values: Values) -> ir.Value:
        result = values[0]
        for k, (number, other) in enumerate(zip(_members(builder, values[0]), _members(builder, values[3]))):
            made = call(builder, "llvm.fma.f32", _F32, [number, values[1 + k // 2 % 2], other])
            result = builder.insert_value(result, made, k)
        return result

    return held(held, x, y, more), emit


wgmma_zero, wgmma_zero_int32 = _zero("wgmma_zero", "float32"), _zero("wgmma_zero_int32", "int32")
wgmma_fence = _plain("wgmma_fence", "wgmma.fence.sync.aligned;")
wgmma_commit = _plain("wgmma_commit", "wgmma.commit_group.sync.aligned;")
sums_row, sums_in_turns = _row("sums_row", True), _row("sums_in_turns", False)

for _product in PRODUCTS.values():
    _name = f"wgmma_{_product.name}"
    globals()[_name] = _wgmma(_name, _product)
    globals()[f"{_name}_first"] = _wgmma_first(f"{_name}_first", _product)
    if _product.size == 2:
        globals()[f"{_name}_held"] = _wgmma_held(f"{_name}_held", _product)
