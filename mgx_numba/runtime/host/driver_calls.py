"""Native loops for the kernels of a symbolic plan: one writes a call's numbers into their arguments, one makes them the
nodes of a graph, one has the driver run them.

Instantiated graphs are updated in place. A graph is launched as soon as its nodes are updated, so that the device works
while the nodes of later graphs are updated.
"""

from __future__ import annotations

import functools
from collections.abc import Callable

from .native import NativeKernel, constants_of

MOST_X = (1 << 31) - 1
"""Maximum number of blocks of a grid along its first axis: CUDA C++ programming guide, technical specifications."""
_MOST_PLANES = 65535  # maximum along the other axes, as `codegen.launch.MOST_PLANES`
TOO_LARGE, TOO_MANY = -1, -2
"""Status codes: a needed number does not fit in int64; a grid has too many blocks."""


class LaunchLoop:
    """Words (int64) of the loops' argument block.

    Inputs:
        ``VALUES``: address of value 0 of the size program.
        ``BASES``: address of the table of base addresses, to which offsets are added; base 0 is 0.
        ``SLOTS``: address of all argument blocks.
        ``RECORDS``, ``WRITES``, ``MAPS``: addresses of the tables, in the order of the kernels. They have a `Launched`
            for each kernel, a `Written` for each number of an argument block, and a `TensorMapArguments` for each
            tensor that the copy engine reads.
        ``SCRATCH``: address of 128 bytes with 64-byte alignment.
        ``STREAM``: the driver's stream.
        ``CHANGED``: 0 if tensor maps and nodes are those of the last call.
        ``GRAPH``: a graph to which nodes are added.
        ``EDGE``: address of the data of edges between nodes that overlap; 0 if a node starts after the preceding node.
        ``TILED``, ``WINDOWS``, ``UPDATE``, ``START``, ``LAUNCH``, ``ADD``, ``JOIN``: addresses of the driver's
            functions.

    Results:
        ``STATUS``: 0, the status of the failed driver function, `TOO_LARGE` or `TOO_MANY`.
        ``FAILED``: number of the kernel that failed.
        ``CALLED``: word of the driver's function that was called last.
    """

    VALUES, BASES, SLOTS, RECORDS, WRITES, MAPS, SCRATCH, STREAM, CHANGED = range(9)
    GRAPH, EDGE, TILED, WINDOWS, UPDATE, START, LAUNCH, ADD, JOIN, STATUS, FAILED, CALLED = range(9, 21)
    WORDS = 21  # one for each name


class Launched:
    """Words (int64) of a kernel's launch.

    Inputs:
        ``X``, ``Y``, ``Z``: numbers of the values of the grid's blocks.
        ``FIRST_WRITE`` to ``END_MAP``: ranges of the kernel's writes and tensor maps.
        ``THREADS``: threads of a block along the first axis.
        ``CONFIG``: address of its node's parameters, or of its CUlaunchConfig if it has no node.
        ``NODE``, ``GRAPH``: its node, and the instantiated graph of the node; 0 for a kernel that is launched itself.
        ``LAST``: the same graph if the node is the graph's last, else 0.
        ``NODE_X``, ``NODE_Y``, ``NODE_Z``: grid of the node, which may have more blocks than the kernel needs.
        ``FUNCTION``, ``PARAMETERS``: addresses of the function and the parameters of a kernel that is launched itself.

    Results:
        ``RUNS``: whether the kernel runs.
        ``GRID_X``, ``GRID_Y``, ``GRID_Z``: its grid.
    """

    X, Y, Z, FIRST_WRITE, END_WRITE, FIRST_MAP, END_MAP, THREADS, CONFIG, NODE, GRAPH, LAST = range(12)
    NODE_X, NODE_Y, NODE_Z, FUNCTION, PARAMETERS, RUNS, GRID_X, GRID_Y, GRID_Z = range(12, 21)
    WORDS = 21  # one for each name


class Written:
    """Words (int64) of a number in an argument block: its ``SLOT``, the value's ``NUMBER``, and the ``BASE`` that is
    added."""

    SLOT, NUMBER, BASE = range(3)
    WORDS = 3  # one for each name


class TensorMapArguments:
    """Words (int64) of a tensor that the copy engine reads.

    ``OFFSET`` and ``BASE`` are the number of its offset and the base that is added. ``LEN`` and ``STRIDE`` are the
    first of the numbers of four lengths and three strides. ``ITEMSIZE`` is in bytes. Arguments of the driver's
    functions follow. ``TARGET`` is the address of the slots that receive the tensor map. ``POSITIONS`` is 0 for tensors
    without windows. The first loop writes ``ADDRESS``, and the memory that ``LENS`` and ``STRIDES`` point to.
    """

    OFFSET, BASE, LEN, STRIDE, ITEMSIZE = 0, 1, 2, 6, 9
    TARGET, TYPE, ADDRESS, LENS, STRIDES, BOX, STEPS, LOWER, UPPER, CHANNELS, POSITIONS = range(10, 21)
    WORDS = 21  # one for each name, but 4 for LEN and 3 for STRIDE


_NAMES = (
    f"INVALID = -{(1 << 63) - 1} - 1\nLOW = 0xFFFFFFFF\nRANK = 4\nSWIZZLE_128 = 3\nPROMOTION_256 = 3\n"
    f"DESCRIPTION_WORDS = 16\nMOST_X = {MOST_X}\nMOST_PLANES = {_MOST_PLANES}\nTOO_LARGE = {TOO_LARGE}\n"
    f"TOO_MANY = {TOO_MANY}\n"
    + constants_of("BATCH", LaunchLoop)
    + constants_of("LAUNCHED", Launched)
    + constants_of("WRITTEN", Written)
    + constants_of("MAP", TensorMapArguments)
)
_WRITING = """
def kernel(args, begin, end):
    status = 0
    values = words_at(args, BATCH_VALUES)
    bases = words_at(args, BATCH_BASES)
    slots = words_at(args, BATCH_SLOTS)
    row = words_from(words_at(args, BATCH_RECORDS), begin * LAUNCHED_WORDS)
    for k in range(begin, end):
        x = values[row[LAUNCHED_X]]
        y = values[row[LAUNCHED_Y]]
        z = values[row[LAUNCHED_Z]]
        row[LAUNCHED_RUNS] = 0
        if status == 0:
            args[BATCH_FAILED] = k
            if x == INVALID or y == INVALID or z == INVALID:
                status = TOO_LARGE
        if status == 0 and x > 0 and y > 0 and z > 0:
            row[LAUNCHED_RUNS] = 1
            row[LAUNCHED_GRID_X] = x
            row[LAUNCHED_GRID_Y] = y
            row[LAUNCHED_GRID_Z] = z
            if x > MOST_X or y > MOST_PLANES or z > MOST_PLANES:
                status = TOO_MANY
            written = words_from(words_at(args, BATCH_WRITES), row[LAUNCHED_FIRST_WRITE] * WRITTEN_WORDS)
            for w in range(row[LAUNCHED_FIRST_WRITE], row[LAUNCHED_END_WRITE]):
                value = values[written[WRITTEN_NUMBER]]
                if value == INVALID:
                    status = TOO_LARGE
                slots[written[WRITTEN_SLOT]] = bases[written[WRITTEN_BASE]] + value
                written = words_from(written, WRITTEN_WORDS)
            tensor = words_from(words_at(args, BATCH_MAPS), row[LAUNCHED_FIRST_MAP] * MAP_WORDS)
            for m in range(row[LAUNCHED_FIRST_MAP], row[LAUNCHED_END_MAP]):
                tensor[MAP_ADDRESS] = bases[tensor[MAP_BASE]] + values[tensor[MAP_OFFSET]]
                lens = words_at(tensor, MAP_LENS)
                strides = words_at(tensor, MAP_STRIDES)
                for a in range(RANK):
                    lens[a] = values[tensor[MAP_LEN + a]]
                for a in range(RANK - 1):
                    strides[a] = values[tensor[MAP_STRIDE + a]] * tensor[MAP_ITEMSIZE]
                tensor = words_from(tensor, MAP_WORDS)
        row = words_from(row, LAUNCHED_WORDS)
    args[BATCH_STATUS] = status
"""
_SENDING = """
def kernel(args, begin, end):
    status = 0
    scratch = words_at(args, BATCH_SCRATCH)
    place = args[BATCH_SCRATCH]
    row = words_from(words_at(args, BATCH_RECORDS), begin * LAUNCHED_WORDS)
    for k in range(begin, end):
        if status == 0 and row[LAUNCHED_RUNS] != 0:
            args[BATCH_FAILED] = k
            config = words_at(row, LAUNCHED_CONFIG)
            if args[BATCH_CHANGED] != 0:
                tensor = words_from(words_at(args, BATCH_MAPS), row[LAUNCHED_FIRST_MAP] * MAP_WORDS)
                for m in range(row[LAUNCHED_FIRST_MAP], row[LAUNCHED_END_MAP]):
                    if status == 0 and tensor[MAP_POSITIONS] == 0:
                        args[BATCH_CALLED] = BATCH_TILED
                        status = LOW & call_function(args, BATCH_TILED, (
                            place, tensor[MAP_TYPE], RANK, tensor[MAP_ADDRESS], tensor[MAP_LENS], tensor[MAP_STRIDES],
                            tensor[MAP_BOX], tensor[MAP_STEPS], 0, SWIZZLE_128, PROMOTION_256, 0))
                    elif status == 0:
                        args[BATCH_CALLED] = BATCH_WINDOWS
                        status = LOW & call_function(args, BATCH_WINDOWS, (
                            place, tensor[MAP_TYPE], RANK, tensor[MAP_ADDRESS], tensor[MAP_LENS], tensor[MAP_STRIDES],
                            tensor[MAP_LOWER], tensor[MAP_UPPER], tensor[MAP_CHANNELS], tensor[MAP_POSITIONS],
                            tensor[MAP_STEPS], 0, SWIZZLE_128, PROMOTION_256, 0))
                    slots = words_at(tensor, MAP_TARGET)
                    for w in range(DESCRIPTION_WORDS):
                        slots[w] = scratch[w]
                    tensor = words_from(tensor, MAP_WORDS)
                if status == 0 and row[LAUNCHED_NODE] != 0:
                    config[1] = row[LAUNCHED_NODE_X] | (row[LAUNCHED_NODE_Y] << 32)
                    config[2] = row[LAUNCHED_NODE_Z] | (row[LAUNCHED_THREADS] << 32)
                    args[BATCH_CALLED] = BATCH_UPDATE
                    status = LOW & call_function(args, BATCH_UPDATE, (
                        row[LAUNCHED_GRAPH], row[LAUNCHED_NODE], row[LAUNCHED_CONFIG]))
            if status == 0 and row[LAUNCHED_NODE] == 0:
                config[0] = row[LAUNCHED_GRID_X] | (row[LAUNCHED_GRID_Y] << 32)
                config[1] = row[LAUNCHED_GRID_Z] | (row[LAUNCHED_THREADS] << 32)
                config[4] = args[BATCH_STREAM]
                args[BATCH_CALLED] = BATCH_LAUNCH
                status = LOW & call_function(args, BATCH_LAUNCH, (
                    row[LAUNCHED_CONFIG], row[LAUNCHED_FUNCTION], row[LAUNCHED_PARAMETERS], 0))
            if status == 0 and row[LAUNCHED_LAST] != 0:
                args[BATCH_CALLED] = BATCH_START
                status = LOW & call_function(args, BATCH_START, (row[LAUNCHED_LAST], args[BATCH_STREAM]))
        row = words_from(row, LAUNCHED_WORDS)
    args[BATCH_STATUS] = status
"""

_ADDING = """
def kernel(args, begin, end):
    status = 0
    behind = 0
    row = words_from(words_at(args, BATCH_RECORDS), begin * LAUNCHED_WORDS)
    for k in range(begin, end):
        if status == 0 and row[LAUNCHED_RUNS] != 0:
            args[BATCH_FAILED] = k
            config = words_at(row, LAUNCHED_CONFIG)
            config[1] = row[LAUNCHED_NODE_X] | (row[LAUNCHED_NODE_Y] << 32)
            config[2] = row[LAUNCHED_NODE_Z] | (row[LAUNCHED_THREADS] << 32)
            node = args[BATCH_RECORDS] + 8 * (k * LAUNCHED_WORDS + LAUNCHED_NODE)
            count = 0
            if behind != 0 and args[BATCH_EDGE] == 0:
                count = 1
            args[BATCH_CALLED] = BATCH_ADD
            status = LOW & call_function(args, BATCH_ADD, (
                node, args[BATCH_GRAPH], behind, count, row[LAUNCHED_CONFIG]))
            if status == 0 and behind != 0 and args[BATCH_EDGE] != 0:
                args[BATCH_CALLED] = BATCH_JOIN
                status = LOW & call_function(args, BATCH_JOIN, (args[BATCH_GRAPH], behind, node, args[BATCH_EDGE], 1))
            behind = node
        row = words_from(row, LAUNCHED_WORDS)
    args[BATCH_STATUS] = status
"""

Loop = Callable[[int, int, int], None]


@functools.lru_cache(maxsize=1)
def loops() -> tuple[Loop, Loop, Loop]:
    """Return the loops that write numbers, have kernels run, and add kernels to a graph.

    Their arguments are the address of a `LaunchLoop` block and a range of kernels.
    """
    from ...codegen.cpu.kernel import cpu_kernel  # late: plans from files import no compiler
    from ...codegen.cpu.toolchain.loader import load

    named = {"driver_numbers": _WRITING, "driver_launches": _SENDING, "driver_nodes": _ADDING}
    writing, sending, adding = map(NativeKernel, load([cpu_kernel(k, _NAMES + v) for k, v in named.items()]))
    return writing, sending, adding
