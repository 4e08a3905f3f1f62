"""The base of attention kernels: tasks and blocks chosen from the shape, operands, the product with the values, the end
of a task, and the join of split keys.

Tasks are cut over batch, heads, blocks of queries, blocks of result columns, and possibly over the keys. A task for a
part of the keys writes a record for each query to scratch memory; a second launch joins the records.
"""

from __future__ import annotations

from ....core.dim import Length, SharedLength, all_of, ceil_div, known_equal, less, less_equal, maximum, minimum, select
from ....dataclass import dataclass
from ...arguments import Arguments
from ...launch import Launch, Operand, TaskRange
from ...problems.attention import AttentionProblem, float64_bits
from ...problems.element_types import element_types
from ...statements import for_tasks, indent, kernel_text
from ..kernel import cpu_kernel
from ..microkernels.register_tile import RegisterTile
from ..microkernels.tile_table import tile_for

OPERANDS = ("q", "k", "v", "out")
PARTS = ("high", "low")
AHEAD = 8
"""Rows of each stream between a row in a block and the row prefetched beside it: hardware stops at a block's end. One
step of SmolLM2, 8 texts of 600 tokens, Zen 5: none 20.5 ms, 2 rows 17.9, 4 16.4, 8 and 16 15.1."""
SEARCH_LANES = 64
"""Mask bytes that are tested together: one AVX-512 register, or a cache line."""
DIMS = ("batch", "head", "row", "step")


class AttentionKernel:
    """A kernel under construction; subclasses provide the statements between decoding a task and its end.

    For the queries ``m0`` to ``m0 + rows`` the statements define, over the keys ``first`` to ``seen``:

    - ``sums``: weighted values, in rows of ``sums_row``
    - ``top``: maxima of the scores
    - ``total``: sums of the weights

    They set ``started`` once there are any, and ``factor`` to the factor of earlier sums. Rows before ``ready`` are
    already stored.
    """

    name = "attention"

    def __init__(self, problem: AttentionProblem, blocks: Blocks, origin: str = "") -> None:
        self.problem, self.blocks, self.origin = problem, blocks, origin
        self.dtype = problem.dtype
        self.tile: RegisterTile = tile_for(element_types(problem.dtype))
        self.lanes, self.columns = self.tile.lanes, self.tile.columns
        self.exp = "exp_fast" if problem.fast_math else "exp"
        self.arguments = Arguments()

    def launch(self) -> Launch:
        """Return the launch for the whole problem."""
        p, b = self.problem, self.blocks
        self._declare()
        setup = [*self._locals(), *self.setup()]
        task = [*self._decode(), *self.body(), *self._finish()]
        text = kernel_text([*self.arguments.bind(), *setup, *self.in_state(for_tasks(task))])
        name = "_".join(filter(None, (self.name, self.mask_name(), "kernel")))
        return Launch(
            cpu_kernel(name, text, self.origin),
            self.arguments.values,
            geometry=TaskRange(
                p.batch * p.heads * ceil_div(p.queries, b.queries) * ceil_div(p.width, b.width) * b.splits
            ),
            flops=p.flops,
            bytes=p.bytes,
        )

    def setup(self) -> list[str]:
        """Return the statements before all tasks."""
        raise NotImplementedError

    def body(self) -> list[str]:
        """Return the statements of one task."""
        raise NotImplementedError

    def in_state(self, statements: list[str]) -> list[str]:
        """Return the statements of all tasks, in the state that the kernel's tiles need."""
        return statements

    def mask_name(self) -> str:
        """Return the part of the kernel's name that describes the mask."""
        mask = self.problem.mask
        return "" if mask is None else "fill" if mask.replaces else "where" if mask.dtype == "bool" else "add"

    def masked(self, mask: str) -> str:
        """Return the expression of the score ``x`` under a mask vector."""
        assert self.problem.mask is not None
        if self.problem.mask.dtype != "bool":
            return f"add(x, {mask})"
        return f"where({mask}, x, {'fill' if self.problem.mask.replaces else '-INF'})"

    def mask_per_key(self) -> bool:
        """Return whether all queries of a head have the same mask at all lengths."""
        mask = self.problem.mask
        return mask is not None and (known_equal(mask.strides[2], 0) or known_equal(self.problem.queries, 1))

    def skip_hidden(self) -> list[str]:
        """Return statements that skip a step if a bool mask hides all its keys, which then have no weight.

        Strided masks are not searched.
        """
        mask = self.problem.mask
        if mask is None or mask.dtype != "bool" or mask.replaces or not known_equal(mask.strides[3], 1):
            return []
        return [
            "shown = False",
            "i = 0",
            f"while i < {'1' if self.mask_per_key() else 'rows'} and not shown:",
            "    at = mask0 + (m0 + i) * mask_row + j0",
            f"    for c in range(0, count, {SEARCH_LANES}):",
            f"        some = imin(count - c, {SEARCH_LANES})",
            f"        shown = shown or reduce_or(load_tail(mask, at + c, some, 0, {SEARCH_LANES}))",
            "    i += 1",
            "if not shown:",
            "    continue",
        ]

    def _declare(self) -> None:
        p, b, arguments = self.problem, self.blocks, self.arguments
        strides = {"q": p.q_strides, "k": p.k_strides, "v": p.v_strides, "out": p.out_strides}
        for name in OPERANDS:
            arguments.pointer(name, name, p.kv_dtype if p.kv_dtype and name in "kv" else p.dtype)
        arguments.pointer("records", "out" if known_equal(b.splits, 1) else "scratch", p.dtype)
        if p.part_strides:
            for name in PARTS:
                arguments.pointer(f"{name}_at", name, "bfloat16")
            strides["high"] = p.part_strides
        if p.limited:
            arguments.pointer("limits", "limits", "int64")
            arguments.integers(window=p.window)
        if self.paged:
            arguments.pointer("table", "table", "int64")
            arguments.integers(page=p.page, pages=p.pages, blocks=p.blocks)
        if p.softcap > 0:
            arguments.integers(cap_bits=float64_bits(p.softcap))
        if p.sink_strides:
            arguments.pointer("sink", "sink", p.dtype)
            arguments.integers(sink_head=p.sink_strides[0], sink_row=p.sink_strides[1])
        if p.mask is not None:
            arguments.pointer("mask", "mask", p.mask.dtype)
            arguments.integers(mask_period=p.batch if p.mask.period is None else p.mask.period)
            if p.mask.replaces:
                arguments.integers(fill_bits=float64_bits(p.mask.fill))
            strides["mask"] = p.mask.strides
        for name, values in strides.items():
            arguments.integers(**{f"{name}_{dim}": s for dim, s in zip(DIMS, values)})
        arguments.integers(
            heads=p.heads, group=p.group, queries=p.queries, capacity=p.keys, depth=p.depth, width=p.width,
            causal_keys=p.first_seen, scale_bits=p.scale_bits, q_block=b.queries, k_block=b.keys, d_block=b.depth,
            e_block=b.width, q_blocks=ceil_div(p.queries, b.queries), e_blocks=ceil_div(p.width, b.width),
            splits=b.splits, share=ceil_div(p.keys, b.splits), record=record_size(self.tile, p),
        )  # fmt: skip

    def _locals(self) -> list[str]:
        size, mask = self.problem.itemsize, self.problem.mask
        return [
            f"scale = cast_{self.dtype}(bits_float64(scale_bits))",
            *([f"cap = cast_{self.dtype}(bits_float64(cap_bits))"] if self.problem.softcap > 0 else []),
            *([f"fill = cast_{self.dtype}(bits_float64(fill_bits))"] if mask is not None and mask.replaces else []),
            *(
                f"{name} = local_{self.dtype}({room // size})"
                for name, room in (("scores", STEP_BYTES), ("sums", BUFFER_BYTES))
            ),
            *(f"{name} = local_{self.dtype}({MOST_QUERIES})" for name in ("top", "total", "factor")),
            *(f"{name}_rows = local_int64({FEW_KEYS + AHEAD})" for name in "kv" if self.paged),
            f"sums_row = idiv(imin(width, e_block) + {self.columns - 1}, {self.columns}) * {self.columns}",
        ]

    def _decode(self) -> list[str]:
        places = [f"{n}0 = batch * {n}_batch + {'kv_head' if n in 'kv' else 'head'} * {n}_head" for n in OPERANDS]
        if self.problem.part_strides:
            places.append("high0 = batch * high_batch + head * high_head")
        if self.problem.mask is not None:
            places.append("mask0 = imod(batch, mask_period) * mask_batch + head * mask_head")
        return [
            "part = imod(task, splits)",
            "rest = idiv(task, splits)",
            "e0 = imod(rest, e_blocks) * e_block",
            "rest = idiv(rest, e_blocks)",
            "m0 = imod(rest, q_blocks) * q_block",
            "rest = idiv(rest, q_blocks)",
            "head = imod(rest, heads)",
            "batch = idiv(rest, heads)",
            "kv_head = idiv(head, group)",
            *places,
            "rows = imin(queries - m0, q_block)",
            "wide = imin(width - e0, e_block)",
            *self._bounds(),
            f"for i in range(0, rows, {self.lanes}):",
            f"    store(top, i, const_{self.dtype}(-INF, {self.lanes}))",
            f"    store(total, i, const_{self.dtype}(0, {self.lanes}))",
            *self._sunk(),
            "started = 0",
            "ready = 0",
        ]

    def _bounds(self) -> list[str]:
        """Return statements that set the keys ``first`` to ``seen`` of a task, and ``first_seen``: query i sees keys up
        to ``i + first_seen``.

        With a window, query i sees keys from ``lowest + i * steps_low``.
        """
        p = self.problem
        if not p.limited:
            return [
                "keys = capacity",
                "first_seen = causal_keys",
                "first = part * share",
                # the task's last query sees the most keys
                "seen = imin(imin(keys, first + share), m0 + rows + first_seen)",
            ]
        lines = [
            "position = load_scalar(limits, 2 * batch)",
            "keys = imax(imin(capacity, load_scalar(limits, 2 * batch + 1)), 0)",
        ]
        if p.one_position and p.causal:
            lines += ["keys = imax(imin(keys, position + 1), 0)"]
        bound = p.causal and not p.one_position
        lines += [f"first_seen = {'position' if bound else 'capacity'}", "begin = 0"]
        if p.window:
            steps = 0 if p.one_position else 1
            lines += ["lowest = position + 1 - window", f"begin = imax(lowest + m0 * {steps}, 0)"]
        return [
            *lines,
            "last_seen = imin(keys, m0 + rows + first_seen)",
            "live = imax(last_seen - begin, 0)",
            # by the keys that are seen, not by the cache's length
            f"parts = imax(imin(idiv(live, {SPLIT_KEYS}), splits), 1)",
            "live = idiv(live + parts - 1, parts)",
            "first = begin + part * live",
            "seen = imin(last_seen, first + live)",
        ]

    def _sunk(self) -> list[str]:
        """Return statements that begin the softmax of the first part of the keys with the sink's score."""
        if not self.problem.sink_strides:
            return []
        return [
            "if part == 0:",
            "    for i in range(rows):",
            "        store_scalar(top, i, load_scalar(sink, head * sink_head + (m0 + i) * sink_row))",
            f"        store_scalar(total, i, const_{self.dtype}(1, 0))",
        ]

    def capped(self, x: str) -> str:
        """Return the expression of a vector of scores under the softcap."""
        tanh = "tanh_fast" if self.problem.fast_math and self.dtype == "float32" else "tanh"
        return f"mul(cap, {tanh}(div({x}, cap)))"

    @property
    def paged(self) -> bool:
        """Return whether keys and values are found by a table of blocks."""
        return not known_equal(self.problem.page, 0)

    def row_of(self, name: str, key: str, result: str) -> list[str]:
        """Return statements that set ``result`` to the offset of the row of key ``j0 + key`` in ``k`` or ``v``."""
        place = f"load_scalar({name}_rows, {key})" if self.paged else f"{name}0 + (j0 + {key}) * {name}_row"
        return [f"{result} = {place}"]

    def find_rows(self) -> list[str]:
        """Return statements that set ``k_rows`` and ``v_rows``: offsets of the rows of ``count`` keys from ``j0``.

        A block that does not exist gives the rows of another; `hide_missing` hides its scores.
        """
        if not self.paged:
            return []
        base = "{0}_at = held * {0}_batch + kv_head * {0}_head + (j0 + j - at_page * page) * {0}_row"
        return [
            *self._pages(),
            "    held = imax(imin(held, blocks - 1), 0)",
            *(f"    {base.format(name)}" for name in "kv"),
            "    while j < stop:",
            *(f"        store_scalar({name}_rows, j, {name}_at)" for name in "kv"),
            *(f"        {name}_at += {name}_row" for name in "kv"),
            "        j += 1",
            "    at_page += 1",
            f"for j in range(count, count + {AHEAD}):",
            *(f"    store_scalar({name}_rows, j, load_scalar({name}_rows, count - 1))" for name in "kv"),
        ]

    def _pages(self) -> list[str]:
        """Return the beginning of a loop over the blocks ``held`` of the keys ``j0 + j`` to ``j0 + stop``."""
        return [
            "at_page = idiv(j0, page)",
            "j = 0",
            "while j < count:",
            "    held = load_scalar(table, batch * pages + at_page)",
            "    stop = imin((at_page + 1) * page - j0, count)",
        ]

    def hide_missing(self, hide: list[str]) -> list[str]:
        """Return statements that ``hide`` the scores of keys ``j0 + hidden`` in blocks that do not exist."""
        if not self.paged:
            return []
        return [
            *self._pages(),
            "    if held < 0 or held >= blocks:",
            "        for hidden in range(j, stop):",
            *indent(hide, 3),
            "    j = stop",
            "    at_page += 1",
        ]

    def kv(self, load: str) -> str:
        """Return the expression of keys or values in the problem's type."""
        return load if self.problem.kv_dtype in ("", self.dtype) else f"cast_{self.dtype}({load})"

    def rescale(self, first: str, stop: str) -> list[str]:
        """Return statements that multiply the sums so far of a range of rows by ``factor``."""
        lanes = self.lanes
        return [
            "if started:",
            f"    for i in range({first}, {stop}):",
            f"        again = load_splat(factor, i, {lanes})",
            f"        for e in range(i * sums_row, (i + 1) * sums_row, {lanes}):",
            f"            store(sums, e, mul(load(sums, e, {lanes}), again))",
        ]

    def store_rows(self, first: str, stop: str) -> list[str]:
        """Return statements that store a range of rows of the result, the sums times ``factor``."""
        lanes = self.lanes
        whole = [] if self.problem.parts_alone else _store_vector("wide", lanes)
        parts = _store_vector("wide", lanes, parts=True) if self.problem.part_strides else []
        return [
            f"for i in range({first}, {stop}):",
            f"    weight = load_splat(factor, i, {lanes})",
            "    place = out0 + (m0 + i) * out_row + e0",
            *(["    part_place = high0 + (m0 + i) * high_row + e0"] if parts else []),
            f"    for e in range(0, wide, {lanes}):",
            f"        x = mul(load(sums, i * sums_row + e, {lanes}), weight)",
            *indent([*whole, *parts], 2),
        ]

    def _finish(self) -> list[str]:
        """Return statements that end a task: divide by the total weight, or write records for the join.

        Queries without visible keys get zeros or NaN.
        """
        lanes = self.lanes
        return [
            "if not started:",
            f"    for i in range(0, rows * sums_row, {lanes}):",
            f"        store(sums, i, const_{self.dtype}(0, {lanes}))",
            "if splits == 1:",
            f"    for i in range(0, rows, {lanes}):",
            f"        x = load(total, i, {lanes})",
            f"        store(factor, i, {inverse('x', self.problem)})",
            *indent(self.store_rows("ready", "rows")),
            "else:",
            "    for i in range(rows):",
            "        place = (((batch * heads + head) * queries + m0 + i) * splits + part) * record",
            "        if e0 == 0:",
            "            store_scalar(records, place, load_scalar(top, i))",
            "            store_scalar(records, place + 1, load_scalar(total, i))",
            f"        place += {lanes} + e0",
            f"        for e in range(0, wide, {lanes}):",
            f"            store(records, place + e, load(sums, i * sums_row + e, {lanes}))",
        ]


def inverse(total: str, problem: AttentionProblem) -> str:
    """Return the expression of the factor of weighted sums. Without any key the sums and their total weight are 0."""
    return f"div(1, {total})" if problem.nan_rows else f"where(ne({total}, 0), div(1, {total}), 0)"


def _store_vector(count: str, lanes: int, parts: bool = False) -> list[str]:
    """Return statements that store the vector ``x`` at ``place + e`` of the result, in a row of ``count`` elements.

    Args:
        parts: store in parts, at ``part_place + e``.
    """
    store, where = ("store_parts", "high_at, low_at, part_place + e") if parts else ("store", "out, place + e")
    return [
        f"if e + {lanes} <= {count}:",
        f"    {store}({where}, x)",
        "else:",
        f"    {store}_tail({where}, x, {count} - e)",
    ]


def join_launch(problem: AttentionProblem, blocks: Blocks, origin: str = "") -> Launch:
    """Return the launch that joins the records [batch, head, query, part] in ``scratch`` into the result."""
    p, dtype = problem, problem.dtype
    tile = tile_for(element_types(dtype))
    lanes, record = tile.lanes, record_size(tile, p)
    exp = "exp_fast" if p.fast_math else "exp"
    arguments = Arguments()
    arguments.pointer("records", Operand("scratch"), dtype)
    arguments.pointer("out", Operand("out"), dtype)
    arguments.integers(**{f"out_{dim}": s for dim, s in zip(DIMS, p.out_strides)})
    arguments.integers(heads=p.heads, queries=p.queries, width=p.width, splits=blocks.splits, record=record)
    body = [
        "row = imod(task, queries)",
        "rest = idiv(task, queries)",
        "place = idiv(rest, heads) * out_batch + imod(rest, heads) * out_head + row * out_row",
        "start = task * splits * record",
        f"peak = const_{dtype}(-INF, 0)",
        "for part in range(splits):",
        "    x = load_scalar(records, start + part * record)",
        "    peak = where(gt(x, peak), x, peak)",
        "peak = where(ne(peak, -INF), peak, 0)",
        f"total = const_{dtype}(0, 0)",
        "for part in range(splits):",
        "    at = start + part * record",
        f"    x = {exp}(sub(load_scalar(records, at), peak))",
        "    store_scalar(records, at, x)",
        "    total = add(total, mul(x, load_scalar(records, at + 1)))",
        f"weight = splat({inverse('total', p)}, {lanes})",
        f"for e in range(0, width, {lanes}):",
        f"    x = const_{dtype}(0, {lanes})",
        "    for part in range(splits):",
        "        at = start + part * record",
        f"        x = add(x, mul(load(records, at + {lanes} + e, {lanes}), load_splat(records, at, {lanes})))",
        "    x = mul(x, weight)",
        *indent(_store_vector("width", lanes)),
    ]
    rows = p.batch * p.heads * p.queries
    moved = p.itemsize * rows * (blocks.splits * record + p.width)
    text = kernel_text([*arguments.bind(), *for_tasks(body)])
    source = cpu_kernel("attention_join_kernel", text, origin)
    tasks = TaskRange(select(less(1, blocks.splits), rows, 0), maximum(1, rows // 64))
    return Launch(source, arguments.values, tasks, 3 * rows * blocks.splits * p.width, moved)


BUFFER_BYTES = 32768
"""Stack memory (bytes) of each buffer: packed queries, sums, copied keys, and a step of few queries."""
LINE_BYTES = 64
"""Bytes of a cache line."""
STEP_BYTES = 2 * BUFFER_BYTES
"""Stack memory (bytes) of the scores of one step, and of its values in panels."""
QUERIES = 96
"""Most queries of a task that packs queries."""
MOST_QUERIES = 128
"""Most queries of any task: a task that packs keys and values packs them once for all its queries."""
FEW_KEYS = 4096
"""Most keys in one step of a few queries: long runs of memory are read faster."""
TASKS_PER_THREAD = 4
"""Tasks of each thread that balance heads of different cost; each task packs its keys again. No figures kept."""
SPLIT_KEYS = 256
"""Fewest keys for which a separate task pays."""


@dataclass(frozen=True)
class Blocks:
    """Queries and result columns of one task, keys and features of one step within it, and parts of the keys.

    ``group`` queries, whole panels, go through one step together.
    """

    queries: int
    group: int
    keys: int
    depth: int
    width: int
    splits: int


def cut_many(tile: RegisterTile, problem: AttentionProblem, threads: int) -> Blocks:
    """Return blocks for panels of queries that fit the buffers."""
    room = BUFFER_BYTES // problem.itemsize
    heads = problem.batch * problem.heads
    panels = ceil_div(problem.width, tile.columns)
    longest = maximum(problem.depth, panels * tile.columns)  # all columns in one task, else scores are computed again
    queries = _even(problem.queries, tile.columns, tile.columns)
    for limit in range(2, max(1, QUERIES // tile.columns) + 1):  # the most panels that fit and give enough tasks
        more = _even(problem.queries, limit * tile.columns, tile.columns)
        enough = less_equal(TASKS_PER_THREAD * threads, heads * ceil_div(problem.queries, more))
        queries = select(all_of(less_equal(more * longest, room), enough), more, queries)
    width = minimum(panels, room // queries // tile.columns) * tile.columns
    tasks = heads * ceil_div(problem.queries, queries) * ceil_div(problem.width, width)
    splits = _splits(problem, tasks, threads)
    part = ceil_div(problem.keys, splits)
    # with a causal bound, small panels skip more keys
    group = tile.columns if problem.causal else queries
    most = STEP_BYTES // problem.itemsize // maximum(score_row(group, problem.itemsize), width)
    if problem.gathered:
        most = minimum(most, room // longest)
    most = most // tile.rows * tile.rows
    keys = _even(part, most, tile.rows)
    return Blocks(queries, group, keys, minimum(problem.depth, room // queries), width, splits)


def gathered_features(tile: RegisterTile, problem: AttentionProblem) -> int:
    """Return the greatest number of features of keys and values for which a copied block of rows fits the buffers."""
    return BUFFER_BYTES // problem.itemsize // tile.rows


def cut_tiles(tile: RegisterTile, problem: AttentionProblem, threads: int) -> Blocks:
    """Return blocks for a matrix tile: a group is the tile's rows, and keys are whole panels."""
    room = BUFFER_BYTES // problem.itemsize
    width = -(-problem.width // tile.columns) * tile.columns
    heads = problem.batch * problem.heads
    queries = _even(problem.queries, tile.rows, tile.rows)
    for limit in range(2 * tile.rows, min(MOST_QUERIES, room // width // tile.rows * tile.rows) + 1, tile.rows):
        more = _even(problem.queries, limit, tile.rows)
        enough = less_equal(TASKS_PER_THREAD * threads, heads * ceil_div(problem.queries, more))
        queries = select(enough, more, queries)
    splits = _splits(problem, heads * ceil_div(problem.queries, queries), threads)
    longest = max(width, 2 * tile.depth(problem.depth))
    most = min(room // tile.rows, 2 * room // longest) // tile.columns * tile.columns
    return Blocks(
        queries, tile.rows, _even(ceil_div(problem.keys, splits), most, tile.columns), problem.depth, width, splits
    )


def cut_few(tile: RegisterTile, problem: AttentionProblem, threads: int) -> Blocks:
    """Return blocks for all queries of a head at a time.

    Over a cache (`AttentionProblem.limited`) a task has the queries of one token, and nothing here depends on the
    numbers of tokens and sequences: a token's result has the same bits whatever else is computed beside it.
    """
    cached = problem.limited
    rows = problem.group if cached and not problem.one_position else problem.queries
    rows = minimum(rows, decode_queries(tile))  # all queries, where lengths chose this kernel
    room = BUFFER_BYTES // problem.itemsize // rows
    width = minimum(ceil_div(problem.width, tile.columns), room // tile.columns) * tile.columns
    heads = problem.kv_heads if cached else problem.batch * problem.heads
    splits = _splits(problem, heads * ceil_div(problem.width, width), threads)
    # each row of scores is padded by a vector
    most = minimum(FEW_KEYS, room // tile.lanes * tile.lanes - tile.lanes)
    keys = most if cached else _even(ceil_div(problem.keys, splits), most, tile.lanes)
    queries = 1 if cached and not problem.one_position else rows
    return Blocks(queries, queries, keys, problem.depth, width, splits)


def decode_queries(tile: RegisterTile) -> int:
    """Return the most queries for which lanes are better filled with features: a quarter of a vector."""
    return max(1, tile.lanes // 4)


def score_row(group: Length, itemsize: int) -> SharedLength:
    """Return the elements between the scores of successive keys for a group of queries: an odd number of cache lines.

    A column of scores then lies in all sets of the L1 cache, not in every second or fourth set.
    """
    line = LINE_BYTES // itemsize
    return group + (1 - group // line % 2) * line


def record_size(tile: RegisterTile, problem: AttentionProblem) -> int:
    """Return the elements of a record for one query: maximum and total weight in one vector, then the sums."""
    return tile.lanes + -(-problem.width // tile.columns) * tile.columns


def _splits(problem: AttentionProblem, tasks: int, threads: int) -> SharedLength:
    """Return the parts of the keys that give every thread some tasks."""
    if threads == 1:
        return 1
    parts = maximum(minimum(ceil_div(TASKS_PER_THREAD * threads, tasks), problem.keys // SPLIT_KEYS), 1)
    # no part is without keys, except a single part without any keys
    return maximum(ceil_div(problem.keys, ceil_div(problem.keys, parts)), 1)


def _even(total: int, limit: int, multiple: int) -> int:
    """Return a block of at most ``limit`` that cuts ``total`` into nearly equal parts; both are multiples of
    ``multiple``."""
    parts = ceil_div(total, limit)
    block = ceil_div(total, parts)
    return minimum(maximum(ceil_div(block, multiple), 1) * multiple, limit)
