"""Saved compiled programs with dynamic inputs: the next process finds their plans in the cache folder."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import mgx_numba as mgx
from mgx_numba.codegen.files import default_folder
from mgx_numba.targets import dynamic
from mgx_numba.targets.cpu.restored import RestoredProgram

from ..caches import with_kernels
from ..running import said

RNG = np.random.default_rng(7)


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A cache folder of the test's own, which finds the compiled kernels of the others."""
    cache = with_kernels(tmp_path / "cache")
    monkeypatch.setenv("MGX_CACHE_DIR", str(cache))
    monkeypatch.delenv("MGX_PLAN_CACHE")
    monkeypatch.delenv("MGX_PLAN_CACHE", raising=False)
    for name in os.environ:
        if name.startswith("MIGRAPHX_"):
            monkeypatch.delenv(name)
    return cache


def dims(*ranges: int | tuple[int, int]) -> list[Any]:
    return [mgx.shape.dynamic_dimension(*(r if isinstance(r, tuple) else (r, r))) for r in ranges]


def layers(summed: bool = True) -> Any:
    """A product and a normalisation of any number of rows, and a sum over them."""
    rng = np.random.default_rng(0)
    net = mgx.program()
    mm = net.get_main_module()
    x = mm.add_parameter("x", mgx.shape(type="float_type", dyn_dims=dims((0, 300), 16)))
    w = mm.add_literal(rng.standard_normal((16, 24), dtype=np.float32))
    y = mm.add_instruction(mgx.op("dot"), [x, w])
    y = mm.add_instruction(mgx.op("softmax", axis=1), [y])
    mm.add_return([y, mm.add_instruction(mgx.op("reduce_sum", axes=[0]), [y])] if summed else [y])
    return net


def addition() -> Any:
    """An addition that broadcasts at one length only: its plan has a guard."""
    net = mgx.program()
    mm = net.get_main_module()
    x, y = (mm.add_parameter(n, mgx.shape(type="float_type", dyn_dims=dims((1, 40), 4))) for n in "xy")
    mm.add_return([mm.add_instruction(mgx.op("add"), [x, y])])
    return net


def summands(a: int, b: int) -> dict[str, np.ndarray]:
    return {n: RNG.standard_normal((rows, 4), dtype=np.float32) for n, rows in (("x", a), ("y", b))}


def plan_files() -> list[Path]:
    return sorted((default_folder() / "plans").rglob("*.plan"))


def results(net: Any, feeds: dict[str, np.ndarray]) -> list[np.ndarray]:
    return [np.asarray(r) for r in net.run(feeds)]


def same(mine: list[np.ndarray], theirs: list[np.ndarray]) -> None:
    for a, b in zip(mine, theirs, strict=True):
        np.testing.assert_array_equal(a, b, strict=True)


@pytest.fixture
def compilations(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """A mark for each plan that is made."""
    found: list[str] = []
    planned = dynamic.OpenPlans.make_plan

    def noting(self: Any, *args: Any) -> Any:
        found.append("planned")
        return planned(self, *args)

    monkeypatch.setattr(dynamic.OpenPlans, "make_plan", noting)
    return found


def rows(n: int) -> dict[str, np.ndarray]:
    return {"x": np.random.default_rng(n).standard_normal((n, 16), dtype=np.float32)}


def test_a_plan_with_symbols_is_read_and_serves_new_lengths(tmp_path: Path, compilations: list[str]) -> None:
    net = layers().compile("cpu", num_threads=2)
    net.run(rows(0))  # for which there is a plan of its own
    mgx.save(net, tmp_path / "net.mxr")
    compilations.clear()
    again = mgx.load(tmp_path / "net.mxr")
    assert isinstance(again.compiled, RestoredProgram)
    assert again.get_parameter_shapes() == net.get_parameter_shapes()
    assert again.get_output_shapes() == net.get_output_shapes()
    for n in (7, 0, 1, 300, 33, 7):
        same(results(again, rows(n)), results(net, rows(n)))
    assert [k.symbol for k in again.kernels()] == [k.symbol for k in net.kernels()]
    assert compilations == []
    again.save(tmp_path / "copy.mxr")
    assert compilations == [] and len(plan_files()) == 1
    assert str(again.open_plans()[0]) in map(str, net.open_plans())
    assert compilations == ["planned"]
    assert str(again) == str(net)


def test_a_process_that_reads_a_plan_with_symbols_compiles_nothing(tmp_path: Path) -> None:
    net = layers(summed=False).compile("cpu", num_threads=2)
    mgx.save(net, tmp_path / "net.mxr")
    program = (
        "import sys, json, numpy as np, mgx_numba\n"
        "net = mgx_numba.load(sys.argv[1])\n"
        "found = [np.asarray(net.run({'x': np.full((n, 16), n, np.float32)})[0]).sum().item() for n in (3, 0, 1, 50)]\n"
        "unwanted = ('numba', 'llvmlite', 'onnx', 'msgpack', 'mgx_numba.ops', 'mgx_numba.graph.passes', 'sqlite3')\n"
        "parts = ('mgx_numba.targets.lowering', 'mgx_numba.graph.symbolic')\n"
        "print(json.dumps([found, [m for m in sys.modules if m in unwanted or m.startswith(parts)]]))\n"
    )
    for _ in range(2):  # the first one asks LLVM for the CPU's name
        found, imported = json.loads(said(program, tmp_path / "net.mxr"))
    assert imported == []
    wanted = [results(net, {"x": np.full((n, 16), n, np.float32)})[0].sum().item() for n in (3, 0, 1, 50)]
    assert found == wanted


def test_lengths_that_the_plan_refuses_are_compiled(tmp_path: Path, compilations: list[str]) -> None:
    net = addition().compile("cpu", num_threads=1)
    mgx.save(net, tmp_path / "net.mxr")
    compilations.clear()
    again = mgx.load(tmp_path / "net.mxr")
    for a, b in ((5, 5), (1, 6), (7, 1), (9, 9), (1, 8)):
        feeds = summands(a, b)
        same(results(again, feeds), [feeds["x"] + feeds["y"]])
        assert bool(compilations) == (a != b or bool(compilations))
    assert compilations
    with pytest.raises(mgx.MgxError):
        again.run({"x": np.zeros((3, 4), np.float32), "y": np.zeros((5, 4), np.float32)})


def test_plans_that_a_run_made_are_there_the_next_time(tmp_path: Path, compilations: list[str]) -> None:
    net = addition().compile("cpu", num_threads=1)
    mgx.save(net, tmp_path / "net.mxr")
    compilations.clear()
    second, feeds = mgx.load(tmp_path / "net.mxr"), summands(1, 6)
    same(results(second, feeds), results(net, feeds))
    assert compilations == ["planned"] * 2  # of each program one: the plan for lengths in general is that of the file
    compilations.clear()
    for _ in range(2):
        third = mgx.load(tmp_path / "net.mxr")
        for a, b in ((1, 6), (5, 5), (1, 8)):
            feeds = summands(a, b)
            same(results(third, feeds), results(net, feeds))
    assert compilations == [] and len(plan_files()) == 1


def test_lengths_that_cannot_be_symbols_have_plans_the_next_time(tmp_path: Path, compilations: list[str]) -> None:
    """Each set of lengths was planned in every process again."""
    net = mgx.program()
    mm = net.get_main_module()
    x = mm.add_parameter("x", mgx.shape(type="float_type", dyn_dims=dims((1, 9), 4)))
    y = mm.add_parameter("y", mgx.shape(type="float_type", dyn_dims=dims((1, 9), 4)))
    mm.add_return([mm.add_instruction(mgx.op("add"), [x, y])])
    net.compile("cpu", num_threads=1)
    for plan in net.compiled.symbolic_plans[:]:  # as if none could be made
        net.compiled.symbolic_plans.remove(plan)
    net.compiled.failed_plans = dynamic.MOST_FAILED
    feeds = {"x": RNG.standard_normal((3, 4), dtype=np.float32), "y": RNG.standard_normal((3, 4), dtype=np.float32)}
    wanted = results(net, feeds)
    mgx.save(net, tmp_path / "net.mxr")
    compilations.clear()
    again = mgx.load(tmp_path / "net.mxr")
    same(results(again, feeds), wanted)
    assert compilations == [] and len(again.compiled._kept.fixed_plans) == 1
