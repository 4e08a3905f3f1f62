"""Threads, forks, unloading, rounding and wrong calls, in a program of C++ (``checks.cpp``), also under sanitizers."""

from __future__ import annotations

import re
from pathlib import Path

import onnx
import pytest
from onnx import TensorProto, helper

from bench.library import Library
from mgx_numba.runtime.cpu.library.linking import compilers, link_library

from ..frontends.support import make_model
from ..values import normal
from .support import build, exported, finished, needs_compiler

pytestmark = needs_compiler

CHECKS = Path(__file__).with_name("checks.cpp")
SANITIZE = "-fsanitize=address,undefined -fno-sanitize-recover=all -g"
EXPECTED = {
    "missing": r"1 first: Parameter not found: image \(given: picture\)",
    "shape": r"1 first: parameter image has the shape float {2, 3, 8, 7}, expected float {2, 3, 8, 8}",
    "rank": r"1 first: parameter image has the shape float {2, 3, 64}, expected float {2, 3, 8, 8}",
    "type": r"1 first: parameter image has the shape double {2, 3, 8, 8}, expected float {2, 3, 8, 8}",
    "null": r"1 first: parameter image: data is NULL",
    "place": r"1 first: parameter image: data is at 0x\w+, which is no multiple of the 4 bytes of an element",
    "order": r"1 parameter image: its elements must lie in row-major order",
    "library": r"1 .*none.so: cannot open shared object file.*",
    "threads": r"1 first: num_threads, or the environment variable MGX_NUM_THREADS: expected 1 to 1024",
    "weights": r"2 first: the weights .*/none.weights cannot be opened: No such file or directory",
    "folder": r"2 first: .*: it is no file",
    "cut": r"2 first: .*/cut.weights: it has \d+ bytes, expected \d+",
    "tiny": r"2 first: .*/tiny.weights: it is no file of weights",
    "other": r"2 first: .*/other.weights: it has the weights of another library",
    "damaged": r"2 first: .*/damaged.weights: it is no file of weights",
    "options": r"1 first: load: mgx_options has a size of 0 bytes, expected \d+",
    "no place": r"1 first: load: where to put the program is NULL",
    "overlap": r"1 first: output y overlaps the parameter image",
    "outputs": r"1 first: 0 outputs are given, the program has 1",
    "tensors": r"1 first: run: the tensors are NULL",
    "no program": r"1 first: run: the program is NULL",
}


def network(seed: int) -> onnx.ModelProto:
    """Return a model with ``layers`` layers, with steps that threads share."""
    feeds = {"image": normal(2, 3, 8, 8)}
    constants = {"w": normal(64, 3, 3, 3, seed=seed), "v": normal(64, 64, 3, 3, seed=seed + 1, scale=0.1)}
    nodes = [
        helper.make_node("Conv", ["image", "w"], ["a"], pads=[1, 1, 1, 1]),
        helper.make_node("Relu", ["a"], ["b"]),
        helper.make_node("Conv", ["b", "v"], ["c"], pads=[1, 1, 1, 1]),
        helper.make_node("Softmax", ["c"], ["d"], axis=1),
        helper.make_node("ReduceMean", ["d"], ["y"], axes=[2, 3]),
    ]
    return make_model(nodes, feeds, {"y": TensorProto.FLOAT}, constants=constants)


@pytest.mark.parametrize("flags", ["", SANITIZE], ids=["plain", "sanitized"])
def test_library_bears_what_programs_do(flags: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CFLAGS", f"-Wall -Wextra -Werror {flags}")
    monkeypatch.delenv("MGX_NUM_THREADS", raising=False)
    _, first = exported(network(1).SerializeToString(), tmp_path, "first")
    _, second = exported(network(5).SerializeToString(), tmp_path, "second", embed_weights=True)
    program = build(CHECKS, tmp_path / "include", tmp_path / "checks", *flags.split())
    lines = finished([program, first, second, tmp_path]).splitlines()
    assert lines.pop() == "all hold"
    told = dict(line.split(": ", 1) for line in lines)
    assert told.keys() == EXPECTED.keys()
    for title, pattern in EXPECTED.items():
        assert re.fullmatch(pattern, told[title]), f"{title}: {told[title]}"


def test_a_cpu_without_the_features_is_refused(tmp_path: Path) -> None:
    _, objects = exported(network(1).SerializeToString(), tmp_path, "first", link=False)
    source = objects / "plan.c"
    text = source.read_text()
    assert '{"sse2", 0x1u, 0u, 3u, 26u, 0x0u}' in text
    # a bit of leaf 7 that is always 0, and a state that no system sets
    text = text.replace('{"sse2", 0x1u, 0u, 3u, 26u, 0x0u}', '{"sse99", 0x7u, 0u, 3u, 0u, 0x0u}')
    text = text.replace('{"sse", 0x1u, 0u, 3u, 25u, 0x0u}', '{"wide", 0x1u, 0u, 3u, 25u, 0x20000000u}')
    source.write_text(text)
    library = link_library(compilers("test", "CC"), objects, tmp_path / "include", "first")
    with pytest.raises(RuntimeError, match="status 3: first: this CPU lacks .* compiled for: wide sse99$"):
        Library(library)
