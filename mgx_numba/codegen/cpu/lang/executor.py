"""Intrinsics for the executor: blocks of int64 words, calls by address, atomics, waiting, bulk copies.

A *words* value is a pointer to int64 (as the ``args`` of a kernel); indices count words. Atomics are
sequentially consistent. Pointers are loaded, stored and offset as typed pointers; only those of the interpreter's
objects, which its functions give as integers, are made from these (`words_of`).
"""

from __future__ import annotations

import sys

from llvmlite import ir

from ...lang.vector import Definition, Values, emits, kernel_function
from ...toolchain.numba_core import cgutils, types

_I8, _I32, _I64 = ir.IntType(8), ir.IntType(32), ir.IntType(64)
_WORDS = types.CPointer(types.int64)
_INT = types.int64
# Numbers of Linux's system calls.
_FUTEX = {"x86_64": 202, "aarch64": 98, "riscv64": 98}
_GETCPU = {"x86_64": 309, "aarch64": 168, "riscv64": 168}
_SCHED_SETAFFINITY = {"x86_64": 203, "aarch64": 122, "riscv64": 122}
_SCHED_GETAFFINITY = {"x86_64": 204, "aarch64": 123, "riscv64": 123}
_FUTEX_WAIT_PRIVATE, _FUTEX_WAKE_PRIVATE = 128, 129
_MONOTONIC = {"linux": 1, "darwin": 6}
"""CLOCK_MONOTONIC of the C library (Linux, include/uapi/linux/time.h; Apple, sys/_types/_clock_id.h) by system."""


def _element(builder: ir.IRBuilder, words: ir.Value, index: ir.Value) -> ir.Value:
    return builder.gep(words, [index])


def _extern(builder: ir.IRBuilder, name: str, result: ir.Type, args: list[ir.Type], var_arg: bool = False) -> ir.Value:
    return cgutils.get_or_insert_function(builder.module, ir.FunctionType(result, args, var_arg=var_arg), name)


@emits(_WORDS(_WORDS, _INT))
def words_at(builder: ir.IRBuilder, block: ir.Value, slot: ir.Value) -> ir.Value:
    """Return the pointer held by word ``slot`` of ``block``, as words."""
    place = builder.bitcast(_element(builder, block, slot), _I64.as_pointer().as_pointer())
    return builder.load(place)


@emits(_WORDS(_WORDS, _INT))
def words_from(builder: ir.IRBuilder, block: ir.Value, index: ir.Value) -> ir.Value:
    """Return the pointer to word ``index`` of ``block``."""
    return _element(builder, block, index)


@emits(_WORDS(_INT))
def words_of(builder: ir.IRBuilder, address: ir.Value) -> ir.Value:
    """Return the words at an address."""
    return builder.inttoptr(address, _I64.as_pointer())


@kernel_function
def put_pointer(block: types.Type, slot: types.Type, pointer: types.Type) -> Definition:
    """Store a pointer, to elements or words, in word ``slot`` of ``block``."""

    def emit(builder: ir.IRBuilder, args: Values) -> None:
        place = builder.bitcast(_element(builder, args[0], args[1]), args[2].type.as_pointer())
        builder.store(args[2], place)

    return types.void(_WORDS, _INT, pointer), emit


@emits(types.void(_WORDS, _INT, _WORDS, _INT, _INT))
def call_kernel(
    builder: ir.IRBuilder, block: ir.Value, slot: ir.Value, args: ir.Value, begin: ir.Value, end: ir.Value
) -> None:
    """Call the kernel whose address word ``slot`` of ``block`` holds."""
    kernel = ir.FunctionType(ir.VoidType(), [_I64.as_pointer(), _I64, _I64]).as_pointer()
    place = builder.bitcast(_element(builder, block, slot), kernel.as_pointer())
    builder.call(builder.load(place), [args, begin, end])


@kernel_function
def call_function(block: types.Type, slot: types.Type, arguments: types.BaseTuple) -> Definition:
    """Call the C function whose address word ``slot`` of ``block`` holds, with a tuple of integers and addresses.

    Returns the register of its result, of which a narrower type fills only the low bits, and ``void`` none.
    """

    def emit(builder: ir.IRBuilder, values: Values) -> ir.Value:
        function = ir.FunctionType(_I64, [_I64] * len(arguments)).as_pointer()
        place = builder.bitcast(_element(builder, values[0], values[1]), function.as_pointer())
        return builder.call(builder.load(place), cgutils.unpack_tuple(builder, values[2], len(arguments)))

    return _INT(_WORDS, _INT, arguments), emit


@emits(_INT(_WORDS, _INT, _INT))
def atomic_add(builder: ir.IRBuilder, words: ir.Value, index: ir.Value, value: ir.Value) -> ir.Value:
    """Add to a word and return its old value."""
    return builder.atomic_rmw("add", _element(builder, words, index), value, "seq_cst")


@emits(_INT(_WORDS, _INT, _INT))
def atomic_and(builder: ir.IRBuilder, words: ir.Value, index: ir.Value, value: ir.Value) -> ir.Value:
    """Combine a word by bitwise and; return its old value."""
    return builder.atomic_rmw("and", _element(builder, words, index), value, "seq_cst")


@emits(_INT(_WORDS, _INT, _INT))
def atomic_or(builder: ir.IRBuilder, words: ir.Value, index: ir.Value, value: ir.Value) -> ir.Value:
    """Combine a word by bitwise or; return its old value."""
    return builder.atomic_rmw("or", _element(builder, words, index), value, "seq_cst")


@emits(_INT(_WORDS, _INT))
def atomic_load(builder: ir.IRBuilder, words: ir.Value, index: ir.Value) -> ir.Value:
    """Read a word."""
    return builder.load_atomic(_element(builder, words, index), "seq_cst", 8)


@emits(types.void(_WORDS, _INT, _INT))
def atomic_store(builder: ir.IRBuilder, words: ir.Value, index: ir.Value, value: ir.Value) -> None:
    """Write a word."""
    builder.store_atomic(value, _element(builder, words, index), "seq_cst", 8)


@emits(_INT(_WORDS, _INT, _INT, _INT))
def compare_exchange(
    builder: ir.IRBuilder, words: ir.Value, index: ir.Value, expected: ir.Value, value: ir.Value
) -> ir.Value:
    """Write ``value`` if the word holds ``expected``; return its old value."""
    place = _element(builder, words, index)
    return builder.extract_value(builder.cmpxchg(place, expected, value, "seq_cst", "seq_cst"), 0)


@emits(types.void())
def pause(builder: ir.IRBuilder) -> None:
    """Emit the spin-loop hint (``pause`` on x86)."""
    target = builder.module.triple
    if target.startswith(("x86_64", "i686")):
        builder.call(_extern(builder, "llvm.x86.sse2.pause", ir.VoidType(), []), [])
    elif target.startswith(("aarch64", "arm64")):
        builder.call(_extern(builder, "llvm.aarch64.hint", ir.VoidType(), [_I32]), [ir.Constant(_I32, 1)])


@emits(types.void())
def yield_thread(builder: ir.IRBuilder) -> None:
    """Let the system run another thread on this core."""
    name = "SwitchToThread" if sys.platform == "win32" else "sched_yield"
    builder.call(_extern(builder, name, _I32, []), [])


def _sleep(builder: ir.IRBuilder, microseconds: ir.Value) -> None:
    if sys.platform == "win32":
        # Rounded up.
        milliseconds = builder.udiv(builder.add(microseconds, ir.Constant(_I64, 999)), ir.Constant(_I64, 1000))
        builder.call(_extern(builder, "Sleep", ir.VoidType(), [_I32]), [builder.trunc(milliseconds, _I32)])
    else:
        builder.call(_extern(builder, "usleep", _I32, [_I32]), [builder.trunc(microseconds, _I32)])


@emits(types.void(_INT))
def sleep_microseconds(builder: ir.IRBuilder, microseconds: ir.Value) -> None:
    """Sleep for less than a second."""
    _sleep(builder, microseconds)


@emits(_INT())
def nanoseconds(builder: ir.IRBuilder) -> ir.Value:
    """Return the time of a monotonic clock; 0 if the system has no known clock."""
    clock = next((clock for system, clock in _MONOTONIC.items() if system in builder.module.triple), None)
    if clock is None:
        return ir.Constant(_I64, 0)
    timespec = cgutils.alloca_once(builder, ir.ArrayType(_I64, 2))
    monotonic = ir.Constant(_I32, clock)
    builder.call(_extern(builder, "clock_gettime", _I32, [_I32, timespec.type]), [monotonic, timespec])
    seconds, rest = (builder.load(cgutils.gep_inbounds(builder, timespec, 0, k)) for k in (0, 1))
    return builder.add(builder.mul(seconds, ir.Constant(_I64, 1_000_000_000)), rest)


def _half_address(builder: ir.IRBuilder, words: ir.Value, index: ir.Value, half: ir.Value) -> ir.Value:
    """Return the address of the low (0) or high (1) 32 bits of a word on a little-endian machine."""
    halves = builder.bitcast(_element(builder, words, index), _I32.as_pointer())
    return builder.gep(halves, [half])


def _call_number(builder: ir.IRBuilder, numbers: dict[str, int]) -> int | None:
    """Return the number of a Linux system call on the target; None on other systems."""
    arch, _, system = builder.module.triple.partition("-")
    return numbers.get(arch) if "linux" in system else None


@emits(_INT())
def current_cpu(builder: ir.IRBuilder) -> ir.Value:
    """Return the number of the CPU that runs this thread; -1 if the system does not report it."""
    number = _call_number(builder, _GETCPU)
    if number is None:
        return ir.Constant(_I64, -1)
    place = cgutils.alloca_once_value(builder, ir.Constant(_I32, -1))
    nothing = ir.Constant(_I32.as_pointer(), None)
    syscall = _extern(builder, "syscall", _I64, [_I64], var_arg=True)
    builder.call(syscall, [ir.Constant(_I64, number), place, nothing, nothing])
    return builder.sext(builder.load(place), _I64)


@emits(_INT(_WORDS, _INT))
def allowed_cpus(builder: ir.IRBuilder, mask: ir.Value, count: ir.Value) -> ir.Value:
    """Set the bits of the CPUs that this thread may run on in ``count`` words, which must be zero.

    Returns the bytes that the system has written; -1 if it does not report the CPUs, or has more.
    """
    number = _call_number(builder, _SCHED_GETAFFINITY)
    if number is None:
        return ir.Constant(_I64, -1)
    size = builder.mul(count, ir.Constant(_I64, 8))
    syscall = _extern(builder, "syscall", _I64, [_I64], var_arg=True)
    return builder.call(syscall, [ir.Constant(_I64, number), ir.Constant(_I64, 0), size, mask])


@emits(types.void(_INT, _WORDS, _INT))
def run_only_on(builder: ir.IRBuilder, thread: ir.Value, mask: ir.Value, count: ir.Value) -> None:
    """Restrict the thread with this system-wide number to the CPUs whose bits are set in ``count`` words."""
    number = _call_number(builder, _SCHED_SETAFFINITY)
    if number is not None:
        size = builder.mul(count, ir.Constant(_I64, 8))
        syscall = _extern(builder, "syscall", _I64, [_I64], var_arg=True)
        builder.call(syscall, [ir.Constant(_I64, number), thread, size, mask])


@emits(types.void(_WORDS, _INT, _INT, _INT, _INT))
def futex_wait(
    builder: ir.IRBuilder, words: ir.Value, index: ir.Value, half: ir.Value, expected: ir.Value, microseconds: ir.Value
) -> None:
    """Sleep while a 32-bit half of a word holds ``expected``, at most ``microseconds`` (0: until woken).

    May return early. Where the system has no futex it sleeps a bounded time, so a caller must wait in a loop.
    """
    number = _call_number(builder, _FUTEX)
    zero = ir.Constant(_I64, 0)
    if number is None:
        soon = ir.Constant(_I64, 500)  # to look again where no limit is given
        bounded = builder.select(builder.icmp_signed("==", microseconds, zero), soon, microseconds)
        _sleep(builder, bounded)
        return
    timespec = cgutils.alloca_once(builder, ir.ArrayType(_I64, 2))
    million, thousand = ir.Constant(_I64, 1_000_000), ir.Constant(_I64, 1000)
    seconds = builder.udiv(microseconds, million)
    nanoseconds = builder.mul(builder.urem(microseconds, million), thousand)
    builder.store(seconds, cgutils.gep_inbounds(builder, timespec, 0, 0))
    builder.store(nanoseconds, cgutils.gep_inbounds(builder, timespec, 0, 1))
    bytes_pointer = _I8.as_pointer()
    timeout = builder.bitcast(timespec, bytes_pointer)
    forever = builder.icmp_signed("==", microseconds, zero)
    timeout = builder.select(forever, ir.Constant(bytes_pointer, None), timeout)
    address = _half_address(builder, words, index, half)
    operation = ir.Constant(_I32, _FUTEX_WAIT_PRIVATE)
    syscall = _extern(builder, "syscall", _I64, [_I64], var_arg=True)
    builder.call(syscall, [ir.Constant(_I64, number), address, operation, builder.trunc(expected, _I32), timeout])


@emits(types.void(_WORDS, _INT, _INT))
def futex_wake(builder: ir.IRBuilder, words: ir.Value, index: ir.Value, half: ir.Value) -> None:
    """Wake every thread that sleeps in `futex_wait` on this half of a word."""
    number = _call_number(builder, _FUTEX)
    if number is not None:
        address = _half_address(builder, words, index, half)
        everyone = ir.Constant(_I32, 2**31 - 1)
        syscall = _extern(builder, "syscall", _I64, [_I64], var_arg=True)
        operation = ir.Constant(_I32, _FUTEX_WAKE_PRIVATE)
        builder.call(syscall, [ir.Constant(_I64, number), address, operation, everyone])


@kernel_function
def copy_bytes(destination: types.Type, source: types.Type, count: types.Type) -> Definition:
    """Copy ``count`` bytes between memory that does not overlap, given by any two pointers."""

    def emit(builder: ir.IRBuilder, args: Values) -> None:
        cgutils.raw_memcpy(builder, args[0], args[1], args[2], 1)

    return types.void(destination, source, _INT), emit


@kernel_function
def fill_bytes(destination: types.Type, value: types.Type, count: types.Type) -> Definition:
    """Set ``count`` bytes to ``value`` (0 to 255)."""

    def emit(builder: ir.IRBuilder, args: Values) -> None:
        cgutils.memset(builder, args[0], args[2], builder.trunc(args[1], _I8))

    return types.void(destination, _INT, _INT), emit
