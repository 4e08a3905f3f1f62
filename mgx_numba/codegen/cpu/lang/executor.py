"""Intrinsics for the executor: blocks of int64 words, calls by address, atomics, waiting, bulk copies.

A *words* value is a pointer to int64 (as the ``args`` of a kernel); indices count words. Atomics are
sequentially consistent. Pointers are loaded, stored and offset as typed pointers; only those of the interpreter's
objects, which its functions give as integers, are made from these (`words_of`).
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any

from llvmlite import ir

from ...toolchain.numba_core import cgutils, intrinsic, types

__all__ = [
    "allowed_cpus",
    "atomic_add",
    "atomic_and",
    "atomic_load",
    "atomic_or",
    "atomic_store",
    "call_function",
    "call_kernel",
    "compare_exchange",
    "copy_bytes",
    "current_cpu",
    "fill_bytes",
    "futex_wait",
    "futex_wake",
    "nanoseconds",
    "pause",
    "put_pointer",
    "run_only_on",
    "sleep_microseconds",
    "words_at",
    "words_from",
    "words_of",
    "yield_thread",
]

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

Lowering = Callable[[Any, ir.IRBuilder, Any, Any], Any]


def _element(builder: ir.IRBuilder, words: ir.Value, index: ir.Value) -> ir.Value:
    return builder.gep(words, [index])


def _extern(builder: ir.IRBuilder, name: str, result: ir.Type, args: list[ir.Type], var_arg: bool = False) -> ir.Value:
    return cgutils.get_or_insert_function(builder.module, ir.FunctionType(result, args, var_arg=var_arg), name)


@intrinsic
def words_at(typingctx, block, slot):
    """Return the pointer held by word ``slot`` of ``block``, as words."""

    def lower(context, builder, signature, args):
        place = builder.bitcast(_element(builder, args[0], args[1]), _I64.as_pointer().as_pointer())
        return builder.load(place)

    return _WORDS(_WORDS, _INT), lower


@intrinsic
def words_from(typingctx, block, index):
    """Return the pointer to word ``index`` of ``block``."""

    def lower(context, builder, signature, args):
        return _element(builder, args[0], args[1])

    return _WORDS(_WORDS, _INT), lower


@intrinsic
def words_of(typingctx, address):
    """Return the words at an address."""

    def lower(context, builder, signature, args):
        return builder.inttoptr(args[0], _I64.as_pointer())

    return _WORDS(_INT), lower


@intrinsic
def put_pointer(typingctx, block, slot, pointer):
    """Store a pointer, to elements or words, in word ``slot`` of ``block``."""

    def lower(context, builder, signature, args):
        place = builder.bitcast(_element(builder, args[0], args[1]), args[2].type.as_pointer())
        builder.store(args[2], place)
        return context.get_dummy_value()

    return types.void(_WORDS, _INT, pointer), lower


@intrinsic
def call_kernel(typingctx, block, slot, args, begin, end):
    """Call the kernel whose address word ``slot`` of ``block`` holds."""
    kernel = ir.FunctionType(ir.VoidType(), [_I64.as_pointer(), _I64, _I64]).as_pointer()

    def lower(context, builder, signature, values):
        place = builder.bitcast(_element(builder, values[0], values[1]), kernel.as_pointer())
        builder.call(builder.load(place), list(values[2:]))
        return context.get_dummy_value()

    return types.void(_WORDS, _INT, _WORDS, _INT, _INT), lower


@intrinsic
def call_function(typingctx, block, slot, arguments):
    """Call the C function whose address word ``slot`` of ``block`` holds, with a tuple of integers and addresses.

    Returns the register of its result, of which a narrower type fills only the low bits, and ``void`` none.
    """

    def lower(context, builder, signature, values):
        function = ir.FunctionType(_I64, [_I64] * len(arguments)).as_pointer()
        place = builder.bitcast(_element(builder, values[0], values[1]), function.as_pointer())
        return builder.call(builder.load(place), cgutils.unpack_tuple(builder, values[2], len(arguments)))

    return _INT(_WORDS, _INT, arguments), lower


def _read_modify_write(operation: str) -> Lowering:
    def lower(context, builder, signature, args):
        return builder.atomic_rmw(operation, _element(builder, args[0], args[1]), args[2], "seq_cst")

    return lower


@intrinsic
def atomic_add(typingctx, words, index, value):
    """Add to a word and return its old value."""
    return _INT(_WORDS, _INT, _INT), _read_modify_write("add")


@intrinsic
def atomic_and(typingctx, words, index, value):
    """Combine a word by bitwise and; return its old value."""
    return _INT(_WORDS, _INT, _INT), _read_modify_write("and")


@intrinsic
def atomic_or(typingctx, words, index, value):
    """Combine a word by bitwise or; return its old value."""
    return _INT(_WORDS, _INT, _INT), _read_modify_write("or")


@intrinsic
def atomic_load(typingctx, words, index):
    """Read a word."""

    def lower(context, builder, signature, args):
        return builder.load_atomic(_element(builder, args[0], args[1]), "seq_cst", 8)

    return _INT(_WORDS, _INT), lower


@intrinsic
def atomic_store(typingctx, words, index, value):
    """Write a word."""

    def lower(context, builder, signature, args):
        builder.store_atomic(args[2], _element(builder, args[0], args[1]), "seq_cst", 8)
        return context.get_dummy_value()

    return types.void(_WORDS, _INT, _INT), lower


@intrinsic
def compare_exchange(typingctx, words, index, expected, value):
    """Write ``value`` if the word holds ``expected``; return its old value."""

    def lower(context, builder, signature, args):
        place = _element(builder, args[0], args[1])
        return builder.extract_value(builder.cmpxchg(place, args[2], args[3], "seq_cst", "seq_cst"), 0)

    return _INT(_WORDS, _INT, _INT, _INT), lower


@intrinsic
def pause(typingctx):
    """Emit the spin-loop hint (``pause`` on x86)."""

    def lower(context, builder, signature, args):
        target = builder.module.triple
        if target.startswith(("x86_64", "i686")):
            builder.call(_extern(builder, "llvm.x86.sse2.pause", ir.VoidType(), []), [])
        elif target.startswith(("aarch64", "arm64")):
            builder.call(_extern(builder, "llvm.aarch64.hint", ir.VoidType(), [_I32]), [ir.Constant(_I32, 1)])
        return context.get_dummy_value()

    return types.void(), lower


@intrinsic
def yield_thread(typingctx):
    """Let the system run another thread on this core."""

    def lower(context, builder, signature, args):
        name = "SwitchToThread" if sys.platform == "win32" else "sched_yield"
        builder.call(_extern(builder, name, _I32, []), [])
        return context.get_dummy_value()

    return types.void(), lower


def _sleep(builder: ir.IRBuilder, microseconds: ir.Value) -> None:
    if sys.platform == "win32":
        # Rounded up.
        milliseconds = builder.udiv(builder.add(microseconds, ir.Constant(_I64, 999)), ir.Constant(_I64, 1000))
        builder.call(_extern(builder, "Sleep", ir.VoidType(), [_I32]), [builder.trunc(milliseconds, _I32)])
    else:
        builder.call(_extern(builder, "usleep", _I32, [_I32]), [builder.trunc(microseconds, _I32)])


@intrinsic
def sleep_microseconds(typingctx, microseconds):
    """Sleep for less than a second."""

    def lower(context, builder, signature, args):
        _sleep(builder, args[0])
        return context.get_dummy_value()

    return types.void(_INT), lower


@intrinsic
def nanoseconds(typingctx):
    """Return the time of a monotonic clock; 0 if the system has no known clock."""

    def lower(context, builder, signature, args):
        clock = next((clock for system, clock in _MONOTONIC.items() if system in builder.module.triple), None)
        if clock is None:
            return ir.Constant(_I64, 0)
        timespec = cgutils.alloca_once(builder, ir.ArrayType(_I64, 2))
        monotonic = ir.Constant(_I32, clock)
        builder.call(_extern(builder, "clock_gettime", _I32, [_I32, timespec.type]), [monotonic, timespec])
        seconds, rest = (builder.load(cgutils.gep_inbounds(builder, timespec, 0, k)) for k in (0, 1))
        return builder.add(builder.mul(seconds, ir.Constant(_I64, 1_000_000_000)), rest)

    return _INT(), lower


def _half_address(builder: ir.IRBuilder, words: ir.Value, index: ir.Value, half: ir.Value) -> ir.Value:
    """Return the address of the low (0) or high (1) 32 bits of a word on a little-endian machine."""
    halves = builder.bitcast(_element(builder, words, index), _I32.as_pointer())
    return builder.gep(halves, [half])


def _call_number(builder: ir.IRBuilder, numbers: dict[str, int]) -> int | None:
    """Return the number of a Linux system call on the target; None on other systems."""
    arch, _, system = builder.module.triple.partition("-")
    return numbers.get(arch) if "linux" in system else None


@intrinsic
def current_cpu(typingctx):
    """Return the number of the CPU that runs this thread; -1 if the system does not report it."""

    def lower(context, builder, signature, args):
        number = _call_number(builder, _GETCPU)
        if number is None:
            return ir.Constant(_I64, -1)
        place = cgutils.alloca_once_value(builder, ir.Constant(_I32, -1))
        nothing = ir.Constant(_I32.as_pointer(), None)
        syscall = _extern(builder, "syscall", _I64, [_I64], var_arg=True)
        builder.call(syscall, [ir.Constant(_I64, number), place, nothing, nothing])
        return builder.sext(builder.load(place), _I64)

    return _INT(), lower


@intrinsic
def allowed_cpus(typingctx, mask, count):
    """Set the bits of the CPUs that this thread may run on in ``count`` words, which must be zero.

    Returns the bytes that the system has written; -1 if it does not report the CPUs, or has more.
    """

    def lower(context, builder, signature, args):
        number = _call_number(builder, _SCHED_GETAFFINITY)
        if number is None:
            return ir.Constant(_I64, -1)
        mask, count = args
        size = builder.mul(count, ir.Constant(_I64, 8))
        syscall = _extern(builder, "syscall", _I64, [_I64], var_arg=True)
        return builder.call(syscall, [ir.Constant(_I64, number), ir.Constant(_I64, 0), size, mask])

    return _INT(_WORDS, _INT), lower


@intrinsic
def run_only_on(typingctx, thread, mask, count):
    """Restrict the thread with this system-wide number to the CPUs whose bits are set in ``count`` words."""

    def lower(context, builder, signature, args):
        number = _call_number(builder, _SCHED_SETAFFINITY)
        if number is not None:
            thread, mask, count = args
            size = builder.mul(count, ir.Constant(_I64, 8))
            syscall = _extern(builder, "syscall", _I64, [_I64], var_arg=True)
            builder.call(syscall, [ir.Constant(_I64, number), thread, size, mask])
        return context.get_dummy_value()

    return types.void(_INT, _WORDS, _INT), lower


@intrinsic
def futex_wait(typingctx, words, index, half, expected, microseconds):
    """Sleep while a 32-bit half of a word holds ``expected``, at most ``microseconds`` (0: until woken).

    May return early. Where the system has no futex it sleeps a bounded time, so a caller must wait in a loop.
    """

    def lower(context, builder, signature, args):
        words, index, half, expected, microseconds = args
        number = _call_number(builder, _FUTEX)
        zero = ir.Constant(_I64, 0)
        if number is None:
            soon = ir.Constant(_I64, 500)  # to look again where no limit is given
            bounded = builder.select(builder.icmp_signed("==", microseconds, zero), soon, microseconds)
            _sleep(builder, bounded)
            return context.get_dummy_value()
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
        return context.get_dummy_value()

    return types.void(_WORDS, _INT, _INT, _INT, _INT), lower


@intrinsic
def futex_wake(typingctx, words, index, half):
    """Wake every thread that sleeps in `futex_wait` on this half of a word."""

    def lower(context, builder, signature, args):
        number = _call_number(builder, _FUTEX)
        if number is not None:
            address = _half_address(builder, *args)
            everyone = ir.Constant(_I32, 2**31 - 1)
            syscall = _extern(builder, "syscall", _I64, [_I64], var_arg=True)
            operation = ir.Constant(_I32, _FUTEX_WAKE_PRIVATE)
            builder.call(syscall, [ir.Constant(_I64, number), address, operation, everyone])
        return context.get_dummy_value()

    return types.void(_WORDS, _INT, _INT), lower


@intrinsic
def copy_bytes(typingctx, destination, source, count):
    """Copy ``count`` bytes between memory that does not overlap, given by any two pointers."""

    def lower(context, builder, signature, args):
        cgutils.raw_memcpy(builder, args[0], args[1], args[2], 1)
        return context.get_dummy_value()

    return types.void(destination, source, _INT), lower


@intrinsic
def fill_bytes(typingctx, destination, value, count):
    """Set ``count`` bytes to ``value`` (0 to 255)."""

    def lower(context, builder, signature, args):
        cgutils.memset(builder, args[0], args[2], builder.trunc(args[1], _I8))
        return context.get_dummy_value()

    return types.void(destination, _INT, _INT), lower
