"""Programs with plans cached in the process, and machine code in files."""

from __future__ import annotations

import dataclasses
import gc
import json
import weakref
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import mgx_numba as mgx
from mgx_numba.codegen.embedding import EmbeddedStore
from mgx_numba.codegen.gpu.transfer import transfer_kernel
from mgx_numba.codegen.launch import Grid
from mgx_numba.core.shape import DynamicDimension, Shape
from mgx_numba.core.types import Type
from mgx_numba.errors import DeviceError, MgxError
from mgx_numba.graph.program import Program
from mgx_numba.runtime.gpu import engines
from mgx_numba.runtime.plan import MappedTensor, Step
from mgx_numba.targets.base import KeptChoice, KeptPlan
from mgx_numba.targets.gpu import program as programs
from mgx_numba.targets.gpu.program import GpuProgram
from mgx_numba.targets.gpu.restored import RestoredDeviceProgram
from mgx_numba.targets.gpu.target import TARGET
from mgx_numba.targets.kept_file import KeptFile, kept_pieces
from mgx_numba.targets.options import TargetOptions

from ..dynamic.models import MODELS
from ..interpreter.engine import interpreted
from ..running import said
from ..values import normal
from .device_data import close, numbers, softmax_of_sum, wanted
from .programs import compiled, interpreter
from .test_recurrent import program_of


@pytest.fixture(autouse=True)
def some_architecture(monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest) -> None:
    if request.node.get_closest_marker("gpu") is None:
        monkeypatch.setenv("MGX_GPU_ARCH", "sm_90a")


def product_program() -> Program:
    """A product whose operands the copy engine brings, and what follows it."""
    program = Program()
    x = program.main.add_parameter("x", Shape(Type.half_type, (128, 64)))
    w = program.main.add_literal(normal(64, 128, dtype=np.float16))
    product = program.main.add_instruction("dot", [x, w])
    program.main.add_return([program.main.add_instruction("softmax", [product], axis=1), product])
    return program


def through_a_file(path: Path, kept: KeptPlan) -> KeptPlan:
    pieces = kept_pieces(kept, {}, {})
    assert pieces is not None
    path.write_bytes(b"".join(bytes(piece) for piece in pieces))
    with path.open("rb", buffering=0) as file:
        reader = KeptFile(file)
        block = reader.allocate()
        again = reader.kept(block)
        reader.fill(block)
    assert isinstance(again, KeptPlan)
    return again


def test_a_plan_that_was_kept_has_all_of_it(tmp_path: Path) -> None:
    program = product_program()
    made = compiled(program, interpreter())
    kept = made.kept_plan()
    assert kept is not None
    mapped = [a for s in kept.plan.steps if isinstance(s, Step) for a in s.args if isinstance(a, MappedTensor)]
    assert mapped
    again = through_a_file(tmp_path / "a.plan", kept)
    assert again.plan.steps == kept.plan.steps and again.trees == kept.trees
    assert (again.plan.arena_bytes, again.plan.uses) == (kept.plan.arena_bytes, kept.plan.uses)


def test_blocks_that_wait_for_each_other_do_so_in_a_plan_that_was_kept(tmp_path: Path) -> None:
    """In an ordinary launch they would wait for blocks that are not resident."""
    kept = compiled(program_of("lstm", h=300)[0], interpreter()).kept_plan()
    assert kept is not None
    again = through_a_file(tmp_path / "a.plan", kept)
    found, meant = ([step.geometry for step in k.plan.steps if isinstance(step, Step)] for k in (again, kept))
    assert found == meant
    assert sum(isinstance(grid, Grid) and grid.cooperative for grid in found) == 1


def test_a_restored_program_runs_and_shows_itself(tmp_path: Path) -> None:
    program = Program()
    x = program.main.add_parameter("x", Shape(Type.float_type, (3, 70)))
    total = program.main.add_instruction("add", [x, program.main.add_literal(normal(3, 70))])
    program.main.add_return([program.main.add_instruction("softmax", [total], axis=1)])
    asked: list[Any] = []

    def portable() -> Program:
        asked.append(program)
        return program

    feed = {"x": normal(3, 70, seed=1)}
    with interpreted():
        made = GpuProgram(program, TargetOptions())
        kept = made.kept_plan()
        assert kept is not None
        again = TARGET.restore(through_a_file(tmp_path / "a.plan", kept), TargetOptions(), portable)
        np.testing.assert_array_equal(again.run(feed)[0], made.run(feed)[0])
        assert not asked
        assert str(again.program) == str(made.program) and len(asked) == 1
        assert again.kernels() == made.kernels()


@pytest.mark.parametrize("name", ["decoder", "two_stages"])
def test_plans_for_all_lengths_are_kept_and_run_in_another_process(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The next process compiled a program with dynamic inputs again."""
    monkeypatch.setenv("MGX_CACHE_DIR", str(tmp_path / "cache"))
    monkeypatch.delenv("MGX_PLAN_CACHE", raising=False)
    monkeypatch.setattr(engines, "model_of", lambda number: "one")
    case = MODELS[name]()
    model, rng = case.model.SerializeToString(), np.random.default_rng(3)
    compiles: list[Any] = []
    compile_program = programs.compile_program

    def noted(*arguments: Any, **options: Any) -> Any:
        compiles.append(options.get("known"))
        return compile_program(*arguments, **options)

    monkeypatch.setattr(programs, "compile_program", noted)
    drawn = sorted((case.draw(rng) for _ in range(8)), key=lambda feeds: sum(a.size for a in feeds.values()))[:1]
    found: list[Any] = []
    with interpreted():
        for _ in range(2):
            net = mgx.parse_onnx_buffer(model, default_dyn_dim_value=mgx.shape.dynamic_dimension(0, 64))
            net.compile(mgx.get_target("gpu"))
            found.append([list(map(np.asarray, net.run(feeds))) for feeds in drawn])
            compiles.append("end")
        assert isinstance(net.compiled, RestoredDeviceProgram)
        first = compiles.index("end")
        assert first > 0 and compiles[first:] == ["end", "end"]
        outside = {name: np.zeros([100, *array.shape[1:]], array.dtype) for name, array in drawn[0].items()}
        with pytest.raises(MgxError):
            net.run(outside)
        assert net.compiled.kernels() and net.compiled.open_plans()
        left = weakref.ref(net.compiled)
        gc.collect()
        gc.disable()
        try:
            del net
            assert left() is None  # with its memory on the device, before any collection
        finally:
            gc.enable()
    for mine, theirs in zip(*found):
        for one, other in zip(mine, theirs, strict=True):
            np.testing.assert_array_equal(one, other)


def test_lengths_that_a_file_lacks_get_a_plan(tmp_path: Path) -> None:
    program = Program()
    x = program.main.add_parameter("x", Shape.dynamic(Type.float_type, [DynamicDimension(1, 50), 5]))
    program.main.add_return([program.main.add_instruction("softmax", [x], axis=1)])
    with interpreted():
        made = compiled(program, engines.engine())
        kept = made.kept_plan()
        assert isinstance(kept, KeptChoice)
        some = dataclasses.replace(kept, plans=())
        again = TARGET.restore(some, TargetOptions(fast_math=False), lambda: program)
        grown: list[Any] = []
        again.keep_growth(grown.append)  # type: ignore[attr-defined]
        for rows in (3, 7):
            feed = {"x": normal(rows, 5, seed=rows)}
            np.testing.assert_array_equal(again.run(feed)[0], made.run(feed)[0])
        (same,) = grown
        assert isinstance(same.kept_plan(), KeptChoice) and len(same.kept_plan().plans) == 1


def test_host_steps_of_a_kept_plan_run(tmp_path: Path) -> None:
    program = Program()
    x = program.main.add_parameter("x", Shape(Type.float_type, (3, 5)))
    total = program.main.add_instruction("add", [x, x])
    program.main.add_return([program.main.add_instruction("nonzero", [total]), total])
    feed = {"x": np.maximum(normal(3, 5, seed=1), 0)}
    with interpreted():
        made = GpuProgram(program, TargetOptions())
        kept = made.kept_plan()
        assert isinstance(kept, KeptPlan) and made.fallback_reasons()
        again = TARGET.restore(through_a_file(tmp_path / "a.plan", kept), TargetOptions(), lambda: program)
        for mine, theirs in zip(again.run(feed), made.run(feed), strict=True):
            np.testing.assert_array_equal(mine, theirs)


def test_a_plan_is_kept_for_devices_of_one_model(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Plans for any device were kept as those of the first one."""
    models = ("small", "small", "large")

    def model_of(number: int) -> str:
        if number >= len(models):
            raise DeviceError(f"there is no device {number}")
        return models[number]

    monkeypatch.setattr(engines, "model_of", model_of)
    monkeypatch.setenv("MGX_CACHE_DIR", str(tmp_path / "cache"))
    monkeypatch.delenv("MGX_PLAN_CACHE", raising=False)
    path = tmp_path / "a.mxr"

    def loaded(number: int) -> bool:
        """Whether the program of this device came from a plan."""
        net = mgx.load(str(path), device_id=number)
        x, y = numbers(1)
        close(list(net.run({"x": x, "y": y})), wanted(x, y))
        assert net.compiled is not None and net.compiled.device == number
        return not isinstance(net.compiled, GpuProgram)

    with interpreted(3):
        made = softmax_of_sum()
        made.compile(mgx.get_target("gpu"), device_id=1)
        mgx.save(made, str(path))
        assert len(list((tmp_path / "cache" / "plans").rglob("*.plan"))) == 1
        assert loaded(0) and loaded(1)
        assert not loaded(2)
        assert len(list((tmp_path / "cache" / "plans").rglob("*.plan"))) == 2
        assert loaded(2) and loaded(0)
        with pytest.raises(DeviceError, match="no device 3"):
            mgx.load(str(path), device_id=3)


RESTORING = """
import json, sys
from pathlib import Path
import numpy as np
from mgx_numba.runtime.gpu import cuda, hip
from mgx_numba.targets.kept_file import KeptFile
from mgx_numba.targets.gpu.compiled import DeviceProgram
from mgx_numba.targets.gpu.target import TARGET
from mgx_numba.targets.options import TargetOptions
with Path(sys.argv[1]).open("rb", buffering=0) as file:
    reader = KeptFile(file)
    plan = reader.kept(reader.allocate()).plan
made = DeviceProgram(None, TargetOptions(), plan, None, lambda: None)
assert made.kernels() and made.kept_plan() is not None and not made.fallback_reasons()
unwanted = ("numba", "llvmlite", "onnx", "msgpack", "mgx_numba.ops", "mgx_numba.graph.passes", "sqlite3")
print(json.dumps([m for m in sys.modules if m in unwanted or m.startswith("mgx_numba.targets.lowering")]))
"""


def test_restoring_a_plan_imports_neither_numba_nor_operators(tmp_path: Path) -> None:
    """Loading a saved program took a second before its first result, to import everything that compiles."""
    kept = compiled(product_program(), interpreter()).kept_plan()
    assert kept is not None
    through_a_file(tmp_path / "a.plan", kept)
    assert json.loads(said(RESTORING, tmp_path / "a.plan")) == []


def test_planning_imports_no_numba(tmp_path: Path) -> None:
    """A process whose kernels are all in the object store compiles without it, in half of the time."""
    code = (
        "import sys, mgx_numba.targets.gpu.program\n"
        "print([m for m in sys.modules if m in ('numba', 'llvmlite', 'onnx', 'sqlite3')])\n"
    )
    assert said(code) == "[]"


def test_machine_code_is_kept_for_who_trusts_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MGX_CACHE_DIR", str(tmp_path))
    made = compiled(product_program(), interpreter())
    code = made.machine_code()
    assert code["identity"]["architecture"] == "sm_90a"
    sources = [*made.kernels(), transfer_kernel()]
    assert {k["symbol"] for k in code["kernels"]} == {k.symbol for k in sources}
    value = {**code, "kernels": [{**k, "object": memoryview(bytes(k["object"].data))} for k in code["kernels"]]}
    monkeypatch.setenv("MGX_CACHE_DIR", str(tmp_path / "other"))
    store = EmbeddedStore(value)
    assert all(store.get(kernel) for kernel in made.kernels())


@pytest.mark.gpu
def test_a_program_that_was_saved_compiled_is_loaded_without_compiling(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("MGX_PLAN_CACHE", raising=False)
    monkeypatch.setenv("MGX_CACHE_DIR", str(tmp_path / "cache"))
    made = softmax_of_sum()
    made.compile(mgx.get_target("gpu"))
    mgx.save(made, str(tmp_path / "a.mxr"))
    loaded = mgx.load(str(tmp_path / "a.mxr"))
    assert loaded.compiled is not None and "executable" not in vars(loaded.compiled)
    x, y = numbers(1)
    close(list(loaded.run({"x": x, "y": y})), wanted(x, y))
    made.save(str(tmp_path / "b.mxr"), embed_objects=True)
    monkeypatch.setenv("MGX_CACHE_DIR", str(tmp_path / "other"))
    trusted = mgx.load(str(tmp_path / "b.mxr"), trust_objects=True)
    close(list(trusted.run({"x": x, "y": y})), wanted(x, y))
    assert not list((tmp_path / "other").rglob("*.o"))
