"""Literals that are too long for a msgpack binary, and files beyond 4 GiB: written piece by piece, read as views."""

from __future__ import annotations

import mmap
import sys
import tracemalloc
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from mgx_numba.core.argument import Argument
from mgx_numba.errors import FormatError
from mgx_numba.graph import mxr, wire
from mgx_numba.graph.mxr import load_argument, load_buffer, load_program, save_argument, save_buffer, save_program
from mgx_numba.graph.program import Program
from tests.graph.test_mxr import assert_same, literal_program

GIB = 1 << 30


@pytest.fixture
def short_bins(monkeypatch: pytest.MonkeyPatch) -> int:
    monkeypatch.setattr(wire, "LONGEST_BIN", 1000)
    return 1000


def test_long_literals_follow_the_tree_and_are_aligned_views(short_bins: int, tmp_path: Path) -> None:
    path = tmp_path / "model.mxr"
    save_program(literal_program(), path)
    assert path.read_bytes() == save_buffer(literal_program())
    loaded, _ = load_program(path)
    assert_same(loaded, literal_program())
    arrays = [
        i.literal.numpy()
        for i in loaded.main
        if i.literal is not None and i.shape.bytes > short_bins and not i.shape.type.holds_objects
    ]
    assert arrays
    for array in arrays:
        assert array.ctypes.data % 64 == 0 and not array.flags.writeable


def test_long_argument(short_bins: int, tmp_path: Path) -> None:
    saved = Argument.from_array(np.arange(1000.0))
    save_argument(saved, tmp_path / "argument")
    assert (load_argument(tmp_path / "argument").numpy() == saved.numpy()).all()


def test_wrong_places_after_the_tree_are_refused(short_bins: int) -> None:
    data = save_buffer(literal_program())
    load_buffer(data)
    for cut in (1, 700, 5000):
        with pytest.raises(FormatError, match=r"does not lie inside|data end|longer than"):
            load_buffer(data[:-cut])
    with pytest.raises(FormatError, match="more data follow"):
        load_buffer(data + b"\0")
    for count in (-1, 10, 1 << 62):
        tree = {"literal": {"tail": 0, "bytes": count}}
        pieces: list[Any] = []
        wire.pack(tree, pieces.append)
        decoder = wire.Decoder(memoryview(b"".join(pieces) + bytes(2000)))
        decoder.skip()
        decoder.end_tree()
        with pytest.raises(FormatError, match="after the tree"):
            decoder.at(0).value()


def resident() -> int:
    """Bytes of this process's own memory, and of its pages of mapped files."""
    return int(Path("/proc/self/statm").read_text().split()[1]) * 4096


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="needs sparse files and /proc")
def test_more_than_four_gib(tmp_path: Path) -> None:
    """Weights and the written file are sparse, so only their ends are ever touched."""
    sizes = (GIB, 4 * GIB + GIB // 2, 4 * GIB + 4)
    program, before = Program(), resident()
    for number, size in enumerate(sizes):
        weights = np.memmap(tmp_path / f"weights{number}", np.float32, "w+", shape=(size // 4,))
        weights[0], weights[-1] = number + 1, -number - 1
        program.main.add_literal(Argument.from_array(weights))
    program.main.add_return([i for i in program.main if i.is_literal])
    path = tmp_path / "model.mxr"
    with open(path, "wb") as file:

        def write(piece: Any) -> None:
            if len(piece) < 1 << 20:
                file.write(piece)
            else:
                file.write(piece[:4096])
                file.seek(len(piece) - 8192, 1)
                file.write(piece[-4096:])

        tracemalloc.start()
        try:
            wire.pack(mxr._tree(program, {}, "msgpack", {}), write)
            _, peak = tracemalloc.get_traced_memory()
        finally:
            tracemalloc.stop()  # else it slows all later tests of the process
        assert peak < 1 << 20
    assert path.stat().st_size > sum(sizes)
    with open(path, "rb") as file:
        mapped = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
    mapped.madvise(mmap.MADV_RANDOM)  # reading ahead of each place that is looked at took 10 s
    loaded, _ = load_buffer(memoryview(mapped))
    assert str(loaded) == str(program)
    pairs = [(a.literal, b.literal) for a, b in zip(loaded.main, program.main) if b.literal is not None]
    assert len(pairs) == len(sizes)
    for ours, theirs in pairs:
        assert ours is not None
        array, original = ours.numpy(), theirs.numpy()
        assert array.shape == original.shape and array.ctypes.data % 64 == 0
        assert array[0] == original[0] == -array[-1] == -original[-1] != 0
        assert not array[1:-1][:: 1 << 22].any()
    assert resident() - before < 64 << 20
