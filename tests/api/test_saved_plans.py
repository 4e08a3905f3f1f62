"""Loading a file that was saved compiled: with its plan in the cache folder, nothing is decoded or compiled."""

from __future__ import annotations

import json
import os
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import mgx_numba as migraphx
from mgx_numba.api import lineage, saved_plans
from mgx_numba.api.lineage import Lineage, ModelSource
from mgx_numba.codegen.files import default_folder
from mgx_numba.graph import mxr, wire
from mgx_numba.graph.content import open_content
from mgx_numba.targets.cpu.compiled import LoweredProgram
from mgx_numba.targets.registry import target

from ..caches import with_kernels
from ..running import said

RNG = np.random.default_rng(5)
X = RNG.standard_normal((2, 3, 9, 7), dtype=np.float32)


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A cache folder of the test's own, which finds the compiled kernels of the others."""
    cache = with_kernels(tmp_path / "cache")
    monkeypatch.setenv("MGX_CACHE_DIR", str(cache))
    monkeypatch.delenv("MGX_PLAN_CACHE")
    for name in os.environ:
        if name.startswith("MIGRAPHX_"):
            monkeypatch.delenv(name)
    return cache


def network(seed: int = 0, results: int = 1) -> Any:
    """A convolution, a pooling and a product, with random weights."""
    rng = np.random.default_rng(seed)
    net = migraphx.program()
    mm = net.get_main_module()
    x = mm.add_parameter("x", migraphx.shape(type="float_type", lens=[2, 3, 9, 7]))
    w = mm.add_literal(rng.standard_normal((8, 3, 3, 3), dtype=np.float32))
    y = mm.add_instruction(migraphx.op("convolution"), [x, w])
    y = mm.add_instruction(migraphx.op("relu"), [y])
    y = mm.add_instruction(migraphx.op("reshape", dims=[2, 280]), [y])
    v = mm.add_literal(rng.standard_normal((280, 5), dtype=np.float32))
    outputs = [mm.add_instruction(migraphx.op("dot"), [y, v])]
    if results > 1:
        outputs.append(mm.add_instruction(migraphx.op("topk", axis=1, k=2), [outputs[0]]))
    mm.add_return(outputs)
    return net


def compiled(**options: Any) -> Any:
    return network(**options).compile("cpu", num_threads=2)


def plan_files() -> list[Path]:
    return sorted((default_folder() / "plans").rglob("*.plan"))


@pytest.fixture
def decodings(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The files that were decoded, and a mark for each optimised program."""
    import mgx_numba.graph.mxr as mxr
    from mgx_numba.targets.cpu import program

    found: list[str] = []

    def noting(name: str, function: Callable) -> Callable:
        def noted(*args: Any, **options: Any) -> Any:
            found.append(name)
            return function(*args, **options)

        return noted

    monkeypatch.setattr(mxr, "load_content", noting("decoded", mxr.load_content))
    monkeypatch.setattr(program, "optimize", noting("optimized", program.optimize))
    return found


def test_second_load_decodes_and_compiles_nothing(tmp_path: Path, decodings: list[str]):
    net = compiled()
    wanted = np.asarray(net.run({"x": X})[0])
    decodings.clear()
    migraphx.save(net, tmp_path / "net.mxr")
    again = migraphx.load(tmp_path / "net.mxr")
    np.testing.assert_array_equal(np.asarray(again.run({"x": X})[0]), wanted)
    assert decodings == []
    assert again.is_compiled()
    assert again.get_parameter_names() == net.get_parameter_names()
    assert again.get_parameter_shapes() == net.get_parameter_shapes()
    assert again.get_output_shapes() == net.get_output_shapes()
    assert [(k.name, k.text, k.symbol) for k in again.kernels()] == [(k.name, k.text, k.symbol) for k in net.kernels()]
    assert decodings == []


def test_each_step_of_an_instruction_repeated_its_text(folder: Path, tmp_path: Path):
    net = migraphx.program()
    mm = net.get_main_module()
    inputs = [mm.add_parameter(f"x{k}", migraphx.shape(type="float", lens=[2, 3])) for k in range(20)]
    mm.add_return([mm.add_instruction(migraphx.op("concat", axis=0), inputs)])
    net.compile("cpu", num_threads=1)
    net.save(tmp_path / "net.mxr")
    (plan,) = (path.read_bytes() for path in (folder / "plans").rglob("*") if path.is_file())
    text = net.compiled.executable.plan.steps[0].instruction.encode()
    assert (
        len(net.compiled.executable.plan.steps) > 1 and plan.count(text) <= 2
    )  # of the steps, and of the kernel's origin
    again = migraphx.load(tmp_path / "net.mxr")
    assert [s.instruction for s in again.compiled.executable.plan.steps] == [
        s.instruction for s in net.compiled.executable.plan.steps
    ]


def test_the_program_is_decoded_when_it_is_asked_for(tmp_path: Path, decodings: list[str]):
    net = compiled()
    migraphx.save(net, tmp_path / "net.mxr")
    again = migraphx.load(tmp_path / "net.mxr")
    assert str(again) == str(net)
    assert "decoded" in decodings
    assert again.portable == net.portable
    assert again.tuning_records == net.tuning_records
    assert str(again.clone().compile("cpu", num_threads=2)) == str(net)
    migraphx.save(again, tmp_path / "other.mxr")
    assert (tmp_path / "other.mxr").read_bytes() == (tmp_path / "net.mxr").read_bytes()


def test_a_file_of_another_cache_folder_is_compiled_once(tmp_path: Path, folder: Path, decodings: list[str]):
    migraphx.save(compiled(), tmp_path / "net.mxr")
    for path in plan_files():
        path.unlink()
    decodings.clear()
    first = migraphx.load(tmp_path / "net.mxr")
    assert decodings == ["decoded", "optimized"]
    second = migraphx.load(tmp_path / "net.mxr")
    assert decodings == ["decoded", "optimized"]
    assert len(plan_files()) == 1
    for run in range(2):  # the first load's results do not come from the second one's memory
        for loaded in (first, second):
            np.testing.assert_array_equal(
                np.asarray(loaded.run({"x": X + run})[0]), np.asarray(compiled().run({"x": X + run})[0])
            )


def test_a_program_that_is_not_compiled_leaves_no_plan(tmp_path: Path):
    migraphx.save(network(), tmp_path / "net.mxr")
    assert not migraphx.load(tmp_path / "net.mxr").is_compiled()
    migraphx.save(network().compile("ref"), tmp_path / "ref.mxr")
    np.testing.assert_allclose(
        np.asarray(migraphx.load(tmp_path / "ref.mxr").run({"x": X})[0]),
        np.asarray(compiled().run({"x": X})[0]), rtol=1e-3, atol=1e-3,
    )  # fmt: skip
    assert plan_files() == []


def test_results_that_are_tuples(tmp_path: Path):
    net = compiled(results=2)
    migraphx.save(net, tmp_path / "net.mxr")
    again = migraphx.load(tmp_path / "net.mxr")
    wanted, got = net.run({"x": X}), again.run({"x": X})
    assert again.get_output_shapes() == net.get_output_shapes()
    np.testing.assert_array_equal(np.asarray(got[0]), np.asarray(wanted[0]))
    for mine, theirs in zip(got[1], wanted[1], strict=True):
        np.testing.assert_array_equal(np.asarray(mine), np.asarray(theirs))


def test_weights_that_changed_are_noticed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(mxr, "pack_sections", wire.pack)  # without checksums, which would tell, too
    path = tmp_path / "net.mxr"
    migraphx.save(compiled(), path)
    data = bytearray(path.read_bytes())
    weights = network().portable.main.results()[0].inputs[1].literal.numpy()
    at = data.index(weights.tobytes())
    data[at : at + 4] = np.float32(100.0).tobytes()
    path.write_bytes(data)
    changed = migraphx.load(path)
    other = network()
    edited = weights.copy()
    edited.flat[0] = 100.0
    other.portable.main.results()[0].inputs[1].literal = migraphx.argument(edited).unwrap()
    wanted = np.asarray(other.compile("cpu", num_threads=2).run({"x": X})[0])
    np.testing.assert_array_equal(np.asarray(changed.run({"x": X})[0]), wanted)
    np.testing.assert_array_equal(np.asarray(migraphx.load(path).run({"x": X})[0]), wanted)


@pytest.mark.parametrize("damage", ["empty", "short", "head", "body", "longer"])
def test_a_damaged_plan_counts_as_absent(tmp_path: Path, damage: str, decodings: list[str]):
    net = compiled()
    migraphx.save(net, tmp_path / "net.mxr")
    (plan,) = plan_files()
    data = bytearray(plan.read_bytes())
    if damage == "empty":
        data.clear()
    elif damage == "short":
        del data[-1:]
    elif damage == "longer":
        data += b"x"
    else:
        data[3 if damage == "head" else 100] ^= 1
    plan.write_bytes(data)
    decodings.clear()
    again = migraphx.load(tmp_path / "net.mxr")
    assert decodings == ["decoded", "optimized"]
    np.testing.assert_array_equal(np.asarray(again.run({"x": X})[0]), np.asarray(net.run({"x": X})[0]))
    decodings.clear()
    migraphx.load(tmp_path / "net.mxr")
    assert decodings == []


def test_a_plan_is_of_one_environment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, decodings: list[str]):
    net = compiled()
    path = tmp_path / "net.mxr"
    migraphx.save(net, path)

    def key() -> str | None:
        return Lineage(ModelSource(open_content(path))).machine_key(target("cpu"), 0)

    mine = key()
    others = []
    for name, value in (("MGX_NUM_THREADS", "3"), ("MGX_CPU_FEATURES", "avx2")):
        with monkeypatch.context() as patch:
            patch.setenv(name, value)
            others.append(key())
    (default_folder() / "tuning.sqlite").write_bytes(b"x")
    others.append(key())
    monkeypatch.setattr(lineage, "package_state", lambda *parts: "changed")
    others.append(key())
    assert len({mine, *others}) == 5
    for name in ("MIGRAPHX_TRACE_PASSES", "MIGRAPHX_DISABLE_PASSES", "MIGRAPHX_PROBLEM_CACHE"):
        with monkeypatch.context() as patch:
            patch.setenv(name, "x")
            assert key() is None


@pytest.mark.parametrize("in_plan", [True, False])
def test_kernels_that_the_store_lost_are_in_the_plan_or_compiled(
    tmp_path: Path, folder: Path, monkeypatch: pytest.MonkeyPatch, in_plan: bool
):
    if not in_plan:
        monkeypatch.setattr(LoweredProgram, "stored_objects", lambda self: {})
    net = compiled()
    migraphx.save(net, tmp_path / "net.mxr")
    (folder / "objects").unlink()
    program = (
        "import sys, numpy as np, mgx_numba\n"
        "net = mgx_numba.load(sys.argv[1])\n"
        "np.save(sys.argv[2], net.run({'x': np.load(sys.argv[3])})[0])\n"
    )
    np.save(tmp_path / "x.npy", X)
    said(program, *(tmp_path / name for name in ("net.mxr", "y.npy", "x.npy")))
    np.testing.assert_array_equal(np.load(tmp_path / "y.npy"), np.asarray(net.run({"x": X})[0]))
    assert in_plan == (not list((folder / "objects").glob("*.o")))


def test_too_many_plans_are_dropped_the_oldest_first(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    migraphx.save(compiled(seed=1), tmp_path / "1.mxr")
    (first,) = plan_files()
    os.utime(first, (1, 1))
    monkeypatch.setattr(saved_plans, "LIMIT_BYTES", int(2.1 * first.stat().st_size))
    monkeypatch.setattr(saved_plans, "_PRUNE_TO", 0.99)
    for seed in (2, 3):
        migraphx.save(compiled(seed=seed), tmp_path / f"{seed}.mxr")
    assert len(plan_files()) == 2
    assert first not in plan_files()
    monkeypatch.setattr(saved_plans, "LIMIT_BYTES", 10)
    migraphx.save(compiled(seed=4), tmp_path / "4.mxr")
    assert len(plan_files()) == 2


def test_a_warning_of_the_compilation_is_given_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    net = compiled()
    net._form.messages = ["1 of 2 tuning records were measured elsewhere"]
    migraphx.save(net, tmp_path / "net.mxr")
    with pytest.warns(RuntimeWarning, match="measured elsewhere"):
        migraphx.load(tmp_path / "net.mxr")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        migraphx.save(compiled(), tmp_path / "other.mxr")


def test_a_fresh_process_imports_only_what_runs(tmp_path: Path):
    net = compiled()
    migraphx.save(net, tmp_path / "net.mxr")
    program = (
        "import sys, json, numpy as np, mgx_numba\n"
        "net = mgx_numba.load(sys.argv[1])\n"
        "lens = net.get_parameter_shapes()['x'].lens()\n"
        "net.run({'x': np.zeros(lens, np.float32)})\n"
        "unwanted = ('numba', 'llvmlite', 'onnx', 'msgpack', 'mgx_numba.ops', 'mgx_numba.graph.passes', 'sqlite3')\n"
        "batch = 'mgx_numba.codegen.workers.batch'\n"
        "print(json.dumps([m for m in sys.modules if m in unwanted or m.startswith(batch)]))\n"
    )
    for _ in range(2):  # the first one asks LLVM for the CPU's name
        words = said(program, tmp_path / "net.mxr")
    assert json.loads(words) == []


def test_trusted_code_of_the_file_serves_a_kept_plan(tmp_path: Path, folder: Path):
    net = compiled()
    migraphx.save(net, tmp_path / "net.mxr", embed_objects=True)
    (folder / "objects").unlink()
    program = (
        "import sys, json, numpy as np, mgx_numba\n"
        "net = mgx_numba.load(sys.argv[1], trust_objects=True)\n"
        "result = np.asarray(net.run({'x': np.load(sys.argv[2])})[0])\n"
        "print(json.dumps([result.tolist(), 'numba' in sys.modules, 'mgx_numba.ops' in sys.modules]))\n"
    )
    np.save(tmp_path / "x.npy", X)
    wanted = np.asarray(net.run({"x": X})[0])
    for path in plan_files():
        path.unlink()
    for kept in (False, True):
        result, numba, decoded = json.loads(said(program, tmp_path / "net.mxr", tmp_path / "x.npy"))
        np.testing.assert_array_equal(np.array(result, np.float32), wanted)
        assert not numba
        assert decoded is not kept
        assert not list((folder / "objects").glob("*.o"))


def test_choices_are_made_again_to_be_explained(tmp_path: Path):
    net = compiled()
    migraphx.save(net, tmp_path / "net.mxr")
    again = migraphx.load(tmp_path / "net.mxr")
    assert [(c.problem, c.solver) for c in again.tuning_choices()] == [
        (c.problem, c.solver) for c in net.tuning_choices()
    ]
    assert net.tuning_choices()


CUT_OFF = """
import os, sys
import numpy as np
import mgx_numba as migraphx

path, when = sys.argv[1:]
x = np.ones((1, 1024), np.float32)

def cut():
    os.truncate(path, os.path.getsize(path) // 2)

if when == "while it is read":
    from mgx_numba.graph import content
    whole = content.FileContent.whole
    content.FileContent.whole = lambda self: (cut(), whole(self))[1]
try:
    if when == "before it is asked for":
        migraphx.load(path)  # keeps a plan of the package as it is now: its files may change while tests run
    program = migraphx.load(path) if path.endswith(".mxr") else migraphx.parse_onnx(path[:-5])
    if when == "before it is asked for":
        assert program.is_compiled()
        expected = np.asarray(program.run({"x": x})[0])
        cut()
        assert (np.asarray(program.run({"x": x})[0]) == expected).all()
        print(program)
    elif when == "before it is compiled":
        cut()
    if not program.is_compiled():
        program.compile("cpu")
    print("ran", round(float(np.asarray(program.run({"x": x})[0]).sum())))
except migraphx.MgxError as error:
    print("refused", error)
"""


@pytest.mark.parametrize("when", ["before it is compiled", "before it is asked for", "while it is read"])
def test_a_file_that_was_cut_off_killed_the_process(when: str, tmp_path: Path) -> None:
    net = migraphx.program()
    mm = net.get_main_module()
    x = mm.add_parameter("x", migraphx.shape(type="float_type", lens=[1, 1024]))
    weights = np.full((1024, 1024), 0.5, np.float32)
    mm.add_return([mm.add_instruction(migraphx.op("dot"), [x, mm.add_literal(weights)])])
    if when == "before it is asked for":
        net.compile("cpu")
    net.save(tmp_path / "net.mxr")
    assert (
        cut_off(tmp_path / "net.mxr", when)
        == {
            "before it is compiled": f"ran {512 * 1024}",
            "before it is asked for": f"refused {tmp_path / 'net.mxr'}: the file had",
            "while it is read": f"refused {tmp_path / 'net.mxr'}: the file had",
        }[when]
    )


def test_external_data_that_was_cut_off_killed_the_process(tmp_path: Path) -> None:
    onnx = pytest.importorskip("onnx")
    weights = onnx.numpy_helper.from_array(np.full((1024, 1024), 0.5, np.float32), "w")
    x, y = (onnx.helper.make_tensor_value_info(name, onnx.TensorProto.FLOAT, [1, 1024]) for name in "xy")
    graph = onnx.helper.make_graph([onnx.helper.make_node("MatMul", ["x", "w"], ["y"])], "g", [x], [y], [weights])
    model = onnx.helper.make_model(graph, opset_imports=[onnx.helper.make_opsetid("", 17)])
    onnx.save(model, tmp_path / "net.onnx", save_as_external_data=True, location="net.onnx.data")
    assert cut_off(tmp_path / "net.onnx.data", "before it is compiled") == f"ran {512 * 1024}"


def cut_off(path: Path, when: str) -> str:
    """The first words that a process says whose file is cut in half at that time."""
    words = said(CUT_OFF, path, when)
    assert words.startswith("ran") or "the file had" in words, words
    return words if words.startswith("ran") else words[: words.index("the file had") + len("the file had")]


def test_a_file_that_was_written_to_in_place_changed_what_was_loaded(tmp_path: Path) -> None:
    net = compiled()
    net.save(tmp_path / "net.mxr")
    again = migraphx.load(tmp_path / "net.mxr")
    portable = migraphx.load(tmp_path / "net.mxr")
    assert str(portable) == str(net)
    data = bytearray((tmp_path / "net.mxr").read_bytes())
    data[-500:-400] = bytes(100)
    with open(tmp_path / "net.mxr", "r+b") as file:
        file.write(data)
    assert portable.portable == net.portable
    with pytest.raises(migraphx.MgxError, match="changed since it was loaded"):
        again.clone()
