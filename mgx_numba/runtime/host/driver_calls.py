"""Native loops for the kernels of a symbolic plan.

They write a call's numbers into the kernels' arguments, choose graphs that serve these, have the driver run the
kernels, and add kernels to a graph. Instantiated graphs are updated in place. A graph is launched as soon as its nodes
are updated, so that the device works while the nodes of later graphs are updated.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import NamedTuple

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
        ``SERIES``, ``COUNT``: address of the table of `GraphSeries`, and the number of these.
        ``SPARE``, ``IDLE``, ``FEW``: most blocks without work of a node; and of a series, beside as many as the blocks
            with work: in any case, and for each node.
        ``GRAPH``: a graph to which nodes are added.
        ``EARLY``: address of the attribute for launches that may start before the preceding kernel ends.
        ``EDGE``: address of the data of edges between nodes that overlap; 0 if a node starts after the preceding node.
        ``TILED``, ``WINDOWS``, ``UPDATE``, ``START``, ``LAUNCH``, ``ADD``, ``JOIN``: addresses of the driver's
            functions.

    Results:
        ``STATUS``: 0, the status of the failed driver function, `TOO_LARGE` or `TOO_MANY`.
        ``FAILED``: number of the kernel that failed.
        ``CALLED``: word of the driver's function that was called last.
        ``CHOSEN``: number of the series whose nodes the kernels have; -1 if no series serves the grids.
    """

    VALUES, BASES, SLOTS, RECORDS, WRITES, MAPS, SCRATCH, STREAM, CHANGED = range(9)
    SERIES, COUNT, SPARE, IDLE, GRAPH, EDGE, EARLY = range(9, 16)
    TILED, WINDOWS, UPDATE, START, LAUNCH, ADD, JOIN, STATUS, FAILED, CALLED, CHOSEN, FEW = range(16, 28)
    WORDS = 28  # one for each name


class GraphSeries:
    """Words (int64) of a series of graphs: ``KERNELS`` is its number of nodes. ``NUMBERS`` is the address of their
    kernels' numbers, ``COLUMNS`` the address of their words of `Launched` from ``NODE`` to ``NODE_Z``."""

    KERNELS, NUMBERS, COLUMNS = range(3)
    WORDS = 3  # one for each name


class Launched:
    """Words (int64) of a kernel's launch.

    Inputs:
        ``X``, ``Y``, ``Z``: numbers of the values of the grid's blocks.
        ``FIRST_WRITE`` to ``END_MAP``: ranges of the kernel's writes and tensor maps.
        ``THREADS``: threads of a block along the first axis.
        ``NODE``, ``GRAPH``: its node, and the instantiated graph of the node; 0 for a kernel that is launched itself.
        ``LAST``: the same graph if the node is the graph's last, else 0.
        ``NODE_X``, ``NODE_Y``, ``NODE_Z``: grid of the node, which may have more blocks than the kernel needs.
        ``ALONE``: whether it is always launched itself.
        ``OVERLAPS``: whether the kernel may start before the preceding kernel ends, and the next kernel before this
            kernel ends.
        ``NODE_CONFIG``, ``CONFIG``: addresses of the parameters of its node, and of its CUlaunchConfig.
        ``FUNCTION``, ``PARAMETERS``: addresses of its function and its parameters.

    Results:
        ``RUNS``: whether the kernel runs.
        ``GRID_X``, ``GRID_Y``, ``GRID_Z``: its grid.
    """

    X, Y, Z, FIRST_WRITE, END_WRITE, FIRST_MAP, END_MAP, THREADS, NODE, GRAPH, LAST, NODE_X, NODE_Y, NODE_Z = range(14)
    ALONE, OVERLAPS, NODE_CONFIG, CONFIG, FUNCTION, PARAMETERS, RUNS, GRID_X, GRID_Y, GRID_Z = range(14, 24)
    WORDS = 24  # one for each name


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
    f"TOO_MANY = {TOO_MANY}\nCOLUMNS = {Launched.NODE_Z + 1 - Launched.NODE}\n"
    + "".join(f"NODES_{a} = {getattr(Launched, f'NODE_{a}') - Launched.NODE}\n" for a in "XYZ")
    + constants_of("BATCH", LaunchLoop)
    + constants_of("LAUNCHED", Launched)
    + constants_of("SERIES", GraphSeries)
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
_CHOOSING = """
def kernel(args, begin, end):
    records = words_at(args, BATCH_RECORDS)
    running = 0
    working = 0
    row = words_from(records, begin * LAUNCHED_WORDS)
    for k in range(begin, end):
        if row[LAUNCHED_RUNS] != 0 and row[LAUNCHED_ALONE] == 0:
            running += 1
            working += row[LAUNCHED_GRID_X] * row[LAUNCHED_GRID_Y] * row[LAUNCHED_GRID_Z]
        row = words_from(row, LAUNCHED_WORDS)
    least = args[BATCH_IDLE] + args[BATCH_FEW] * running + working + 1
    chosen = -1
    series = words_at(args, BATCH_SERIES)
    for s in range(args[BATCH_COUNT]):
        fits = series[SERIES_KERNELS] == running
        count = 0
        if fits:
            count = running
        idle = 0
        numbers = words_at(series, SERIES_NUMBERS)
        nodes = words_at(series, SERIES_COLUMNS)
        for n in range(count):
            if fits:
                row = words_from(records, numbers[n] * LAUNCHED_WORDS)
                x = nodes[NODES_X]
                y = nodes[NODES_Y]
                z = nodes[NODES_Z]
                more = x * y * z - row[LAUNCHED_GRID_X] * row[LAUNCHED_GRID_Y] * row[LAUNCHED_GRID_Z]
                fits = numbers[n] >= begin and numbers[n] < end and row[LAUNCHED_RUNS] != 0
                if more > args[BATCH_SPARE]:
                    fits = False
                if row[LAUNCHED_GRID_X] > x or row[LAUNCHED_GRID_Y] > y or row[LAUNCHED_GRID_Z] > z:
                    fits = False
                idle += more
            nodes = words_from(nodes, COLUMNS)
        if fits and idle < least:
            chosen = s
            least = idle
        series = words_from(series, SERIES_WORDS)
    if chosen >= 0:
        series = words_from(words_at(args, BATCH_SERIES), chosen * SERIES_WORDS)
        numbers = words_at(series, SERIES_NUMBERS)
        nodes = words_at(series, SERIES_COLUMNS)
        for n in range(series[SERIES_KERNELS]):
            row = words_from(records, numbers[n] * LAUNCHED_WORDS + LAUNCHED_NODE)
            for c in range(COLUMNS):
                row[c] = nodes[c]
            nodes = words_from(nodes, COLUMNS)
    args[BATCH_CHOSEN] = chosen
"""
_SENDING = """
def kernel(args, begin, end):
    status = 0
    overlaps = 0
    scratch = words_at(args, BATCH_SCRATCH)
    place = args[BATCH_SCRATCH]
    row = words_from(words_at(args, BATCH_RECORDS), begin * LAUNCHED_WORDS)
    for k in range(begin, end):
        if status == 0 and row[LAUNCHED_RUNS] != 0:
            args[BATCH_FAILED] = k
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
                    config = words_at(row, LAUNCHED_NODE_CONFIG)
                    config[1] = row[LAUNCHED_NODE_X] | (row[LAUNCHED_NODE_Y] << 32)
                    config[2] = row[LAUNCHED_NODE_Z] | (row[LAUNCHED_THREADS] << 32)
                    args[BATCH_CALLED] = BATCH_UPDATE
                    status = LOW & call_function(args, BATCH_UPDATE, (
                        row[LAUNCHED_GRAPH], row[LAUNCHED_NODE], row[LAUNCHED_NODE_CONFIG]))
            if status == 0 and row[LAUNCHED_NODE] == 0:
                config = words_at(row, LAUNCHED_CONFIG)
                config[0] = row[LAUNCHED_GRID_X] | (row[LAUNCHED_GRID_Y] << 32)
                config[1] = row[LAUNCHED_GRID_Z] | (row[LAUNCHED_THREADS] << 32)
                config[4] = args[BATCH_STREAM]
                if row[LAUNCHED_OVERLAPS] != 0:
                    config[5] = args[BATCH_EARLY]
                    config[6] = overlaps
                overlaps = row[LAUNCHED_OVERLAPS]
                args[BATCH_CALLED] = BATCH_LAUNCH
                status = LOW & call_function(args, BATCH_LAUNCH, (
                    row[LAUNCHED_CONFIG], row[LAUNCHED_FUNCTION], row[LAUNCHED_PARAMETERS], 0))
            if status == 0 and row[LAUNCHED_LAST] != 0:
                args[BATCH_CALLED] = BATCH_START
                status = LOW & call_function(args, BATCH_START, (row[LAUNCHED_LAST], args[BATCH_STREAM]))
                overlaps = 0
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
            config = words_at(row, LAUNCHED_NODE_CONFIG)
            config[1] = row[LAUNCHED_NODE_X] | (row[LAUNCHED_NODE_Y] << 32)
            config[2] = row[LAUNCHED_NODE_Z] | (row[LAUNCHED_THREADS] << 32)
            node = args[BATCH_RECORDS] + 8 * (k * LAUNCHED_WORDS + LAUNCHED_NODE)
            count = 0
            if behind != 0 and args[BATCH_EDGE] == 0:
                count = 1
            args[BATCH_CALLED] = BATCH_ADD
            status = LOW & call_function(args, BATCH_ADD, (
                node, args[BATCH_GRAPH], behind, count, row[LAUNCHED_NODE_CONFIG]))
            if status == 0 and behind != 0 and args[BATCH_EDGE] != 0:
                args[BATCH_CALLED] = BATCH_JOIN
                status = LOW & call_function(args, BATCH_JOIN, (args[BATCH_GRAPH], behind, node, args[BATCH_EDGE], 1))
            behind = node
        row = words_from(row, LAUNCHED_WORDS)
    args[BATCH_STATUS] = status
"""

Loop = Callable[[int, int, int], None]


class Loops(NamedTuple):
    """The loops, as functions of the address of a `LaunchLoop` block and a range of kernels."""

    write: Loop
    choose: Loop
    send: Loop
    add: Loop


@functools.lru_cache(maxsize=1)
def loops() -> Loops:
    """Return the native loops."""
    from ...codegen.cpu.kernel import cpu_kernel  # late: plans from files import no compiler
    from ...codegen.cpu.toolchain.loader import load

    named = {
        "driver_numbers": _WRITING, "driver_choice": _CHOOSING, "driver_launches": _SENDING, "driver_nodes": _ADDING
    }  # fmt: skip
    return Loops(*map(NativeKernel, load([cpu_kernel(name, _NAMES + text) for name, text in named.items()])))
