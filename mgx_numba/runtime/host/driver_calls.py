"""The native loop that launches a plan's kernels by the functions of a driver, whose addresses it is given."""

from __future__ import annotations

import functools
from collections.abc import Callable

from ...codegen.cpu.kernel import cpu_kernel
from ...codegen.cpu.toolchain.loader import load
from .native import NativeKernel, constants_of

__all__ = ["Batch", "Described", "Launched", "launching"]


class Batch:
    """Words of the loop's block.

    ``RECORDS``: the address of a `Launched` for each kernel. ``MAPS``: that of a `Described` for each tensor that the
    copy engine reads, in the order of the kernels. ``SCRATCH``: that of 128 bytes at a multiple of 64. ``LAUNCH``,
    ``TILED``, ``WINDOWS``: addresses of cuLaunchKernelEx, cuTensorMapEncodeTiled and cuTensorMapEncodeIm2col.
    Results: ``STATUS`` of the function that failed, or 0; ``FAILED``: at which kernel; ``DESCRIBING``: whether it was a
    function that describes a tensor.
    """

    RECORDS, MAPS, SCRATCH, LAUNCH, TILED, WINDOWS, STATUS, FAILED, DESCRIBING = range(9)
    WORDS = 9  # one for each name


class Launched:
    """Words of a launch: whether the kernel ``RUNS``; the addresses of its CUlaunchConfig, its function and its
    parameters; the range of its tensors for the copy engine."""

    RUNS, CONFIG, FUNCTION, PARAMETERS, FIRST_MAP, END_MAP = range(6)
    WORDS = 6  # one for each name


class Described:
    """Words of a tensor for the copy engine, arguments of the driver's functions: ``TARGET`` is the address of the
    slots that take the description. ``POSITIONS`` is 0 of tensors without windows."""

    TARGET, TYPE, ADDRESS, LENS, STRIDES, BOX, STEPS, LOWER, UPPER, CHANNELS, POSITIONS = range(11)
    WORDS = 11  # one for each name


_LOOP = cpu_kernel(
    "driver_launches",
    "LOW = 0xFFFFFFFF\nRANK = 4\nSWIZZLE_128 = 3\nPROMOTION_256 = 3\nDESCRIPTION_WORDS = 16\n"
    + constants_of("BATCH", Batch)
    + constants_of("LAUNCHED", Launched)
    + constants_of("MAP", Described)
    + """
def kernel(args, begin, end):
    status = 0
    scratch = words_at(args, BATCH_SCRATCH)
    place = args[BATCH_SCRATCH]
    row = words_from(words_at(args, BATCH_RECORDS), begin * LAUNCHED_WORDS)
    for k in range(begin, end):
        if status == 0 and row[LAUNCHED_RUNS] != 0:
            tensor = words_from(words_at(args, BATCH_MAPS), row[LAUNCHED_FIRST_MAP] * MAP_WORDS)
            for m in range(row[LAUNCHED_FIRST_MAP], row[LAUNCHED_END_MAP]):
                if status == 0:
                    if tensor[MAP_POSITIONS] == 0:
                        status = LOW & call_function(args, BATCH_TILED, (
                            place, tensor[MAP_TYPE], RANK, tensor[MAP_ADDRESS], tensor[MAP_LENS], tensor[MAP_STRIDES],
                            tensor[MAP_BOX], tensor[MAP_STEPS], 0, SWIZZLE_128, PROMOTION_256, 0))
                    else:
                        status = LOW & call_function(args, BATCH_WINDOWS, (
                            place, tensor[MAP_TYPE], RANK, tensor[MAP_ADDRESS], tensor[MAP_LENS], tensor[MAP_STRIDES],
                            tensor[MAP_LOWER], tensor[MAP_UPPER], tensor[MAP_CHANNELS], tensor[MAP_POSITIONS],
                            tensor[MAP_STEPS], 0, SWIZZLE_128, PROMOTION_256, 0))
                    slots = words_at(tensor, MAP_TARGET)
                    for w in range(DESCRIPTION_WORDS):
                        slots[w] = scratch[w]
                tensor = words_from(tensor, MAP_WORDS)
            args[BATCH_FAILED] = k
            args[BATCH_DESCRIBING] = status
            if status == 0:
                status = LOW & call_function(args, BATCH_LAUNCH, (
                    row[LAUNCHED_CONFIG], row[LAUNCHED_FUNCTION], row[LAUNCHED_PARAMETERS], 0))
        row = words_from(row, LAUNCHED_WORDS)
    args[BATCH_STATUS] = status
""",
)


@functools.lru_cache(maxsize=1)
def launching() -> Callable[[int, int, int], None]:
    """Return the loop; its arguments are the address of a `Batch` block and a range of kernels."""
    (code,) = load([_LOOP])
    return NativeKernel(code)  # type: ignore[no-any-return]
