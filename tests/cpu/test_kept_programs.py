"""Compiled programs of each kind, saved and loaded: results are bit-identical."""

from __future__ import annotations

import dataclasses
import functools
import json
import os
import pickle
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest

import mgx_numba as mgx
from mgx_numba.api.compiled_form import CompiledForm, target_options
from mgx_numba.core.dim import evaluate
from mgx_numba.errors import FormatError
from mgx_numba.graph.program import Program
from mgx_numba.runtime.host.plan_numbers import PlanNumbers
from mgx_numba.runtime.plan import Plan
from mgx_numba.targets.base import Kept, KeptPlan, KeptSplit
from mgx_numba.targets.cpu.target import TARGET
from mgx_numba.targets.kept_file import KeptFile, kept_pieces

from ..caches import with_kernels
from ..features import ARM
from ..running import said
from .kept_cases import CASES, Feeds


def bytes_of(net: Any) -> bytes:
    """The file of a compiled program."""
    kept = net.compiled.kept_plan()
    assert kept is not None
    pieces = kept_pieces(kept, {"of": "a test"}, {})
    assert pieces is not None
    return b"".join(map(bytes, pieces))


def read(path: Path) -> Kept:
    """Return a file's content."""
    with path.open("rb", buffering=0) as file:
        reader = KeptFile(file)
        block = reader.allocate()
        reader.fill(block)
        return reader.kept(block)


def through_a_file(net: Any, path: Path, portable: Any = None) -> Any:
    """The program that a file of a compiled one gives; where nothing else is said, it must not be decoded."""

    def unseen() -> Program:
        raise AssertionError("the program was decoded")

    path.write_bytes(bytes_of(net))
    again = TARGET.restore(read(path), target_options(net._file, net.compile_options), portable or unseen)
    made = net.clone()
    form, made._file = net._form, net._file
    made._form = CompiledForm(again, form.target, form.parameters, form.results, 0, lambda: None, [])
    return made


@functools.cache
def compiled(name: str) -> tuple[Any, list[Feeds]]:
    case = CASES[name]()
    net = mgx.parse_onnx_buffer(case.model.SerializeToString())
    return net.compile("cpu", num_threads=2), case.feeds


def results(net: Any, feeds: Feeds) -> list[np.ndarray]:
    return [np.asarray(r) for r in net.run(feeds)]


def same(mine: list[np.ndarray], theirs: list[np.ndarray]) -> None:
    for a, b in zip(mine, theirs, strict=True):
        np.testing.assert_array_equal(a, b, strict=True)


@pytest.mark.parametrize("name", CASES)
def test_a_program_computes_the_same_after_it_was_in_a_file(name: str, tmp_path: Path) -> None:
    net, feeds = compiled(name)
    wanted = [results(net, given) for given in feeds]
    again = through_a_file(net, tmp_path / "a.plan")
    for given, expected in zip(feeds[::-1], wanted[::-1], strict=True):
        same(results(again, given), expected)
    assert {k.symbol for k in again.kernels()} == {k.symbol for k in net.kernels()}
    third = through_a_file(again, tmp_path / "b.plan")  # what was read is written again
    for given, expected in zip(feeds, wanted, strict=True):
        same(results(third, given), expected)


@pytest.mark.parametrize("name", ["branches", "late_branch", "two_stages", "single_shot"])
def test_lengths_that_nobody_met_before_it_was_in_a_file(name: str, tmp_path: Path) -> None:
    """Where the plans of the file do not serve, the program is compiled."""
    net, feeds = compiled(name)
    again = through_a_file(net, tmp_path / "a.plan", lambda: net.portable)
    for given in feeds:
        same(results(again, given), results(net, given))
    assert str(again) == str(net)


def test_submodules_that_a_run_compiled_are_in_the_next_file(tmp_path: Path) -> None:
    case = CASES["late_branch"]()
    net = mgx.parse_onnx_buffer(case.model.SerializeToString()).compile("cpu", num_threads=2)
    again = through_a_file(net, tmp_path / "a.plan", lambda: net.portable)
    wanted = results(again, case.feeds[0])
    same(results(through_a_file(again, tmp_path / "b.plan"), case.feeds[0]), wanted)


PROCESS = """
import json, pickle, sys
import numpy as np, mgx_numba
from mgx_numba.targets.cpu.restored import RestoredProgram
from pathlib import Path
wrong = []
for name, feeds, wanted in pickle.loads(Path(sys.argv[1], "cases").read_bytes()):
    net = mgx_numba.load(Path(sys.argv[1], name))
    if name != "packed" and not isinstance(net.compiled, RestoredProgram):
        wrong.append(f"{name} was compiled")
    for given, results in zip(feeds, wanted, strict=True):
        for mine, theirs in zip(net.run(given), results, strict=True):
            if not np.array_equal(np.asarray(mine), theirs) or np.asarray(mine).dtype != theirs.dtype:
                wrong.append(name)
unwanted = ("numba", "llvmlite", "mgx_numba.graph.symbolic", "mgx_numba.targets.lowering.lowering", "sqlite3")
print(json.dumps([wrong, [m for m in unwanted if m in sys.modules]]))
"""


def test_a_process_that_reads_them_compiles_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MGX_CACHE_DIR", str(with_kernels(tmp_path / "cache")))
    monkeypatch.delenv("MGX_PLAN_CACHE", raising=False)
    for name in os.environ:
        if name.startswith("MIGRAPHX_"):
            monkeypatch.delenv(name)
    cases = []
    for name in CASES:
        net, feeds = compiled(name)
        cases.append((name, feeds, [results(net, given) for given in feeds]))
        mgx.save(net, tmp_path / name)
    (tmp_path / "cases").write_bytes(pickle.dumps(cases))
    said("import mgx_numba; mgx_numba.program().compile('cpu')")  # asks LLVM for the CPU's name
    assert json.loads(said(PROCESS, tmp_path)) == [[], ["llvmlite"] if ARM else []]  # on ARM it loads kernels


def test_custom_operators_are_in_no_file() -> None:
    """Their code may be another one next time."""

    mgx.register_custom_op("kept", "Twice", compute=lambda x: 2 * x, compute_shape=lambda s: s)
    try:
        node = onnx.helper.make_node("Twice", ["x"], ["y"], domain="kept")
        floats = [onnx.helper.make_tensor_value_info(name, 1, [2, 3]) for name in "xy"]
        graph = onnx.helper.make_graph([node], "g", floats[:1], floats[1:])
        opsets = [onnx.helper.make_opsetid(*one) for one in (("", 17), ("kept", 1))]
        net = mgx.parse_onnx_buffer(onnx.helper.make_model(graph, opset_imports=opsets).SerializeToString())
        kept = net.compile("cpu").compiled.kept_plan()
        assert kept is not None and kept_pieces(kept, {}, {}) is None
    finally:
        mgx.unregister_custom_op("kept", "Twice")


def test_files_with_changed_bytes_are_refused(tmp_path: Path) -> None:
    """Every part is checked: a plan's numbers become addresses, and constants were not checked."""
    net, _ = compiled("branches")
    data = bytes_of(net)
    path = tmp_path / "a.plan"
    rng = np.random.default_rng(5)
    places = [*range(0, 64, 5), *rng.integers(0, len(data), 250), len(data) - 1]
    for place in map(int, places):
        changed = bytearray(data)
        changed[place] ^= 1 << int(rng.integers(8))
        path.write_bytes(changed)
        with pytest.raises(FormatError):
            read(path)
    for length in (0, 7, 48, 100, *map(int, rng.integers(0, len(data), 40)), len(data) - 1):
        path.write_bytes(data[:length])
        with pytest.raises(FormatError):
            read(path)
    path.write_bytes(data + b"\0")
    with pytest.raises(FormatError):
        read(path)


def plans_of(kept: Kept) -> list[Plan]:
    if isinstance(kept, KeptPlan):
        return [kept.plan]
    parts = (kept.head, kept.tail) if isinstance(kept, KeptSplit) else kept.plans
    return [plan for part in parts for plan in plans_of(part)]


@pytest.mark.parametrize("name", ["branches", "loop", "two_stages", "strings"])
def test_every_field_of_a_plan_is_in_the_file(name: str, tmp_path: Path) -> None:
    """A field that is new and not written would be one that a run does without."""
    net, _ = compiled(name)
    (tmp_path / "a.plan").write_bytes(bytes_of(net))
    kept = net.compiled.kept_plan()
    assert kept is not None
    found = read(tmp_path / "a.plan")
    assert TARGET.restore(
        found, target_options(net._file, net.compile_options), lambda: net.portable
    )  # which completes fallback steps
    pairs = list(zip(plans_of(kept), plans_of(found), strict=True))
    assert pairs
    for plan, again in pairs:
        mine, theirs = plan, again
        if plan.symbols:
            values = [max(s.low or 0, 3) for s in plan.symbols]
            mine, theirs = (PlanNumbers(one).at(values) for one in (plan, again))
            told = [[(s.low, s.high, str(s)) for s in one.symbols] for one in (plan, again)]
            assert told[0] == told[1]
            holds = [evaluate(one.condition, dict(zip(one.symbols, values))) for one in (plan, again)]
            assert holds[0] == holds[1]
        for field in dataclasses.fields(Plan):
            a, b = getattr(mine, field.name), getattr(theirs, field.name)
            if field.name == "constants":
                assert all(x.dtype == y.dtype and np.array_equal(x, y) for x, y in zip(a, b, strict=True))
            elif field.name == "steps":
                for x, y in zip(a, b, strict=True):
                    told = [
                        f.name for f in dataclasses.fields(x) if f.name not in ("function", "bind", "write", "plans")
                    ]
                    assert [getattr(x, n) for n in told] == [getattr(y, n) for n in told]
            elif field.name != "sizes":
                assert a == b, field.name
