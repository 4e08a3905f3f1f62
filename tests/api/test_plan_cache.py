"""Models compiled before: the plan is read from the cache folder.

Each fault of the cache folder or of a model's files gives the right result, as if there were no cache.
"""

from __future__ import annotations

import gc
import json
import os
import shutil
import threading
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

import mgx_numba as migraphx
from mgx_numba.api import digests, lineage, saved_plans
from mgx_numba.codegen.files import default_folder
from mgx_numba.runtime import plan_file
from mgx_numba.runtime.cpu.executor import Executable
from mgx_numba.session import InferenceSession, SessionOptions

from ..caches import with_kernels
from ..frontends.tf_support import Graph, Kind
from ..running import said

X = np.random.default_rng(5).standard_normal((2, 12), dtype=np.float32)


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


@pytest.fixture
def work(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Record the files read and the kernels compiled, in order."""
    from mgx_numba.frontends.onnx import parser
    from mgx_numba.targets.cpu import program

    found: list[str] = []

    def noting(name: str, function: Callable) -> Callable:
        def noted(*args: Any, **options: Any) -> Any:
            found.append(name)
            return function(*args, **options)

        return noted

    monkeypatch.setattr(parser.GraphParser, "parse_main", noting("read", parser.GraphParser.parse_main))
    monkeypatch.setattr(program, "optimize", noting("compiled", program.optimize))
    return found


def weights(seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).standard_normal((12, 7), dtype=np.float32)


def network(seed: int = 0, declared: list[int | str] | None = None) -> onnx.ModelProto:
    """A product and a relu; with another seed of the same size in bytes."""
    nodes = [helper.make_node("MatMul", ["x", "w"], ["p"]), helper.make_node("Relu", ["p"], ["y"])]
    inputs = [helper.make_tensor_value_info("x", TensorProto.FLOAT, [2, 12] if declared is None else declared)]
    outputs = [helper.make_tensor_value_info("y", TensorProto.FLOAT, None)]
    graph = helper.make_graph(nodes, "g", inputs, outputs, [numpy_helper.from_array(weights(seed), "w")])
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)


def wanted(seed: int = 0) -> np.ndarray:
    return np.maximum(X @ weights(seed), 0)


def check(found: Any, seed: int = 0) -> None:
    np.testing.assert_allclose(np.asarray(found), wanted(seed), rtol=1e-5, atol=1e-5)


def result(path: Path | bytes, **options: Any) -> np.ndarray:
    parse = migraphx.parse_onnx_buffer if isinstance(path, bytes) else migraphx.parse_onnx
    return np.asarray(parse(path).compile("cpu", num_threads=1, **options).run({"x": X})[0])


def kept() -> list[Path]:
    return sorted(path for path in (default_folder() / "plans").rglob("*") if path.is_file())


@pytest.fixture
def path(tmp_path: Path) -> Path:
    path = tmp_path / "net.onnx"
    onnx.save(network(), path)
    return path


def test_second_process_neither_reads_nor_compiles(path: Path) -> None:
    result(path)
    InferenceSession(path)
    program = (
        "import sys, json, numpy as np\n"
        "if sys.argv[2] == 'session':\n"
        "    from mgx_numba.session import InferenceSession\n"
        "    found = InferenceSession(sys.argv[1]).run(None, {'x': np.load(sys.argv[3])})[0]\n"
        "else:\n"
        "    import mgx_numba\n"
        "    net = mgx_numba.parse_onnx(sys.argv[1]).compile('cpu', num_threads=1)\n"
        "    found = net.run({'x': np.load(sys.argv[3])})[0]\n"
        "np.save(sys.argv[4], found)\n"
        "unwanted = ('numba', 'llvmlite', 'onnx', 'google.protobuf', 'mgx_numba.ops', 'mgx_numba.graph.program')\n"
        "print(json.dumps([name for name in unwanted if name in sys.modules]))\n"
    )
    np.save(path.parent / "x.npy", X)
    imported = []
    for way in ("program", "session", "program"):  # the first one asks LLVM for the CPU's name
        imported.append(json.loads(said(program, path, way, path.parent / "x.npy", path.parent / "y.npy")))
        check(np.load(path.parent / "y.npy"))
    assert imported[1:] == [[], []]


def test_second_process_of_a_detector_imports_no_operators(tmp_path: Path) -> None:
    """The fallback step that counts the boxes of NonMaxSuppression took operators and passes with it."""
    node = helper.make_node("NonMaxSuppression", ["boxes", "scores", "most"], ["rows"])
    given = [("boxes", [1, 6, 4]), ("scores", [1, 2, 6])]
    inputs = [helper.make_tensor_value_info(name, TensorProto.FLOAT, lens) for name, lens in given]
    output = helper.make_tensor_value_info("rows", TensorProto.INT64, ["n", 3])
    most = numpy_helper.from_array(np.array([4], np.int64), "most")
    graph = helper.make_graph([node], "g", inputs, [output], [most])
    path = tmp_path / "detector.onnx"
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8), path)
    random = np.random.default_rng(0)
    corners = np.sort(random.random((1, 6, 2, 2), np.float32), 2).reshape(1, 6, 4)
    feeds = {"boxes": corners, "scores": random.random((1, 2, 6), np.float32)}
    np.savez(tmp_path / "feeds.npz", **feeds)
    wanted = np.asarray(migraphx.parse_onnx(path).compile("cpu", num_threads=1).run(feeds)[0])
    assert len(wanted)
    program = (
        "import sys, json, numpy as np, mgx_numba\n"
        "net = mgx_numba.parse_onnx(sys.argv[1]).compile('cpu', num_threads=1)\n"
        "rows = np.asarray(net.run(dict(np.load(sys.argv[2])))[0]).tolist()\n"
        "unwanted = ('onnx', 'mgx_numba.ops', 'mgx_numba.graph.program', 'mgx_numba.graph.instruction')\n"
        "print(json.dumps([rows, [name for name in unwanted if name in sys.modules]]))\n"
    )
    for _ in range(2):  # the first one asks LLVM for the CPU's name
        words = said(program, path, tmp_path / "feeds.npz")
    assert json.loads(words) == [wanted.tolist(), []]


def test_each_way_in_finds_the_plan(path: Path, work: list[str]) -> None:
    data = path.read_bytes()
    net = migraphx.parse_onnx(path).compile("cpu", num_threads=1)
    assert work == ["read", "compiled"]
    for given in (path, data):
        check(result(given))
    again = migraphx.parse_onnx(path)
    assert again.get_parameter_shapes() == net.get_parameter_shapes()
    assert again.get_output_names() == ["y"]
    assert [s.lens() for s in again.get_output_shapes()] == [[2, 7]]
    assert work == ["read", "compiled"]
    for given in (path, data):
        session = InferenceSession(given)
        check(session.run(None, {"x": X})[0])
        assert [(i.name, i.shape) for i in session.get_inputs()] == [("x", [2, 12])]
        assert session.get_modelmeta().graph_name == "g"
    assert work == ["read", "compiled"] * 2  # the session's options are others


def test_options_are_part_of_the_key(path: Path, work: list[str]) -> None:
    def compiled(parse: dict[str, Any], compile: dict[str, Any]) -> Any:
        return migraphx.parse_onnx(path, **parse).compile("cpu", **compile)

    ways: list[tuple[dict[str, Any], dict[str, Any]]] = [
        ({}, {}),
        ({}, {"fast_math": False}),
        ({}, {"num_threads": 1}),
        ({}, {"use_fp16": True}),
        ({}, {"disabled_passes": ["fuse_pointwise"]}),
        ({"use_debug_symbols": True}, {}),
        ({"map_input_dims": {"x": [2, 12]}}, {}),
    ]
    for count, way in enumerate(ways, 1):
        compiled(*way)
        assert work.count("compiled") == count
    for way in ways:
        check(compiled(*way).run({"x": X})[0]) if "use_fp16" not in way[1] else compiled(*way)
    assert work.count("compiled") == len(ways)


def test_the_program_is_read_when_somebody_looks(path: Path, work: list[str]) -> None:
    first = migraphx.parse_onnx(path)
    text = str(first)
    first.compile("cpu")
    again = migraphx.parse_onnx(path)
    assert work == ["read", "compiled"]
    assert str(again) == text and work == ["read", "compiled", "read"]
    again.compile("cpu")
    assert work == ["read", "compiled", "read"]
    assert str(again) == str(first) and again == first
    assert [k.text for k in again.kernels()] == [k.text for k in first.kernels()]
    assert migraphx.save_buffer(again) == migraphx.save_buffer(first)


def test_a_program_that_was_changed_was_found_as_it_was_before(path: Path) -> None:
    result(path)
    for _ in range(2):
        net = migraphx.parse_onnx(path)
        mm = net.get_main_module()
        (returned,) = [ins for ins in mm if ins.name() == "@return"]
        twice = mm.add_instruction(migraphx.op("add"), [returned.inputs()[0]] * 2)
        mm.replace_return([twice])
        check(np.asarray(net.compile("cpu").run({"x": X})[0]) / 2)
    net = migraphx.parse_onnx(path).compile("cpu")
    check(net.run({"x": X})[0])
    migraphx.optimize(net, {"fusion_rules": {"dot_pointwise": False}})
    check(net.run({"x": X})[0])


def test_quantisation_without_data_is_part_of_the_key(path: Path, work: list[str]) -> None:
    def quantised() -> Any:
        net = migraphx.parse_onnx(path)
        migraphx.quantize_fp16(net)
        return net.compile("cpu")

    first = quantised()
    count = len(work)
    again = quantised()
    assert len(work) == count
    np.testing.assert_array_equal(again.run({"x": X})[0], first.run({"x": X})[0])
    assert str(again) == str(first) and "half" in str(again.portable)
    assert "half" not in str(migraphx.parse_onnx(path).compile("cpu").portable)
    net = migraphx.parse_onnx(path)
    with pytest.raises(migraphx.MgxError):
        migraphx.quantize_fp16(net, ["no_such_operator"])
    migraphx.quantize_int8(net, migraphx.get_target("cpu"), [{"x": X}])
    found = net.compile("cpu")
    assert "uint8" in str(found.portable)


def test_calibration_data_were_no_part_of_the_key(path: Path, work: list[str]) -> None:
    for _ in range(2):
        migraphx.parse_onnx(path).compile("cpu", use_int8=True, calibration=[{"x": X}])
    assert kept() == []


def test_warnings_of_reading_and_compiling_are_told_again(tmp_path: Path) -> None:
    proto = network(declared=[0, 12])
    path = tmp_path / "net.onnx"
    onnx.save(proto, path)
    told = []
    for _ in range(3):
        with warnings.catch_warnings(record=True) as found:
            warnings.simplefilter("always")
            net = migraphx.parse_onnx(path, map_input_dims={"x": [2, 12]}, dim_params={"none": 3}).compile("cpu")
            check(net.run({"x": X})[0])
            str(net)
        told.append([(str(w.message), w.category, w.filename) for w in found])
    assert told[0] and told[0] == told[1] == told[2] and told[0][0][2] == __file__
    assert kept()


def test_it_can_be_turned_off(path: Path, monkeypatch: pytest.MonkeyPatch, work: list[str]) -> None:
    for _ in range(2):
        check(result(path, plan_cache=False))
    options = SessionOptions()
    options.add_session_config_entry("mgx_numba.plan_cache", "0")
    check(InferenceSession(path, options).run(None, {"x": X})[0])
    monkeypatch.setenv("MGX_PLAN_CACHE", "0")
    check(result(path))
    assert kept() == [] and work.count("compiled") == 4
    monkeypatch.delenv("MGX_PLAN_CACHE")
    result(path)
    work.clear()
    check(result(path, plan_cache=False))
    assert work == ["read", "compiled"]


def test_a_model_with_open_lengths_is_found(tmp_path: Path, work: list[str]) -> None:
    path = tmp_path / "net.onnx"
    onnx.save(network(declared=["n", 12]), path)
    for count in range(2):
        net = migraphx.parse_onnx(path)
        assert str(net.get_parameter_shapes()["x"]) == "dynamic, float_type, {n, 12}"
        net.compile("cpu", num_threads=1)
        check(net.run({"x": X})[0])
        session = InferenceSession(path)
        assert [i.shape for i in session.get_inputs()] == [["n", 12]]
        check(session.run(None, {"x": X})[0])
        assert work.count("read") == 2, count


def executables() -> int:
    """Return the number of plans in memory. Dead weak proxies, which other tests leave, have no class of their own."""
    return sum(issubclass(type(one), Executable) for one in gc.get_objects())


@pytest.mark.parametrize("declared", [["n", 12], None])
def test_the_plan_of_a_dropped_program_is_freed_at_once(path: Path, declared: list[int | str] | None) -> None:
    """A plan of open lengths, compiled or found, stayed in a reference cycle with its arena and packed weights."""
    onnx.save(network(declared=declared), path)
    gc.collect()
    gc.disable()
    try:
        before = executables()
        for _ in range(2):
            check(result(path))
            assert executables() == before
    finally:
        gc.enable()


def test_custom_operators_are_never_found(path: Path, work: list[str]) -> None:
    result(path)
    migraphx.register_custom_op("test_plan_cache", "Twice", scalar=lambda x: x + x)
    try:
        work.clear()
        check(result(path))
        assert work == ["read", "compiled"]
    finally:
        migraphx.unregister_custom_op("test_plan_cache", "Twice")


def test_another_model_of_the_same_size_and_time_was_taken_for_the_first(path: Path) -> None:
    status = path.stat()
    check(result(path))
    for seed in (1, 2):
        onnx.save(network(seed), path)
        os.utime(path, ns=(status.st_atime_ns, status.st_mtime_ns))
        assert path.stat().st_size == status.st_size
        for _ in range(2):
            check(result(path), seed)
            check(InferenceSession(path).run(None, {"x": X})[0], seed)


def test_a_file_that_is_replaced_between_reading_and_compiling(path: Path) -> None:
    result(path)
    for change in (lambda: onnx.save(network(1), path), path.unlink):
        net = migraphx.parse_onnx(path)
        change()
        check(net.compile("cpu", fast_math=False).run({"x": X})[0])  # no plan with these options
        assert "@literal" in str(net)
        onnx.save(network(), path)


def test_a_large_file_that_is_written_to_in_place_is_an_error(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lineage, "_HELD_BYTES", 0)
    result(path)
    net = migraphx.parse_onnx(path)
    onnx.save(network(1), path)
    with pytest.raises(migraphx.MgxError, match="changed since it was loaded"):
        net.compile("cpu", fast_math=False)
    check(result(path), 1)


@pytest.mark.parametrize("hashed", [True, False])
def test_external_data_that_change(
    tmp_path: Path, hashed: bool, monkeypatch: pytest.MonkeyPatch, work: list[str]
) -> None:
    if not hashed:
        monkeypatch.setattr(lineage, "_HASHED_BYTES", 0)
        monkeypatch.setattr(digests, "TICK", 0)
    path, data = tmp_path / "net.onnx", tmp_path / "w.bin"
    proto = network()
    onnx.save(proto, path, save_as_external_data=True, location="w.bin", size_threshold=0)
    monkeypatch.setattr(lineage.time, "time_ns", lambda: data.stat().st_mtime_ns + 10**9)  # as some time later
    check(result(path))
    check(result(path))
    assert work == ["read", "compiled"]
    data.write_bytes(weights(1).tobytes())
    for _ in range(2):
        check(result(path), 1)
    assert work.count("compiled") == 2
    data.unlink()
    with pytest.raises(migraphx.MgxError, match="w.bin"):
        result(path)
    moved = tmp_path / "other"
    moved.mkdir()
    shutil.copy(path, moved)
    (moved / "w.bin").write_bytes(weights(2).tobytes())
    check(result(moved / "net.onnx"), 2)


def test_external_data_that_were_written_while_the_model_was_read_are_not_trusted(tmp_path: Path) -> None:
    path = tmp_path / "net.onnx"
    onnx.save(network(), path, save_as_external_data=True, location="w.bin", size_threshold=0)
    os.utime(tmp_path / "w.bin", (2**33, 2**33))  # later than any time of reading
    check(result(path))
    assert kept() == []


@pytest.mark.parametrize("damage", ["empty", "short", "head", "body", "constants", "longer", "folder"])
@pytest.mark.parametrize("kind", ["*.plan", "*.json"])
def test_a_damaged_entry_counts_as_absent(path: Path, kind: str, damage: str) -> None:
    result(path)
    (entry,) = (default_folder() / "plans").rglob(kind)
    data = bytearray(entry.read_bytes())
    places = {"head": 3, "body": 100, "constants": len(data) - 70}
    if damage == "empty":
        data.clear()
    elif damage == "short":
        del data[-1:]
    elif damage == "longer":
        data += b"x"
    elif damage != "folder":
        data[places[damage]] ^= 0x40
    entry.unlink()
    entry.mkdir() if damage == "folder" else entry.write_bytes(data)
    for _ in range(2):
        check(result(path))


def test_an_entry_of_another_package_is_not_found(path: Path, monkeypatch: pytest.MonkeyPatch, work: list[str]) -> None:
    with monkeypatch.context() as patch:
        patch.setattr(lineage, "package_state", lambda *parts: "older")
        result(path)
    work.clear()
    check(result(path))
    assert work == ["read", "compiled"]


@pytest.mark.parametrize("fault", ["full", "read-only", "gone", "a file", "a long name"])
def test_a_folder_that_cannot_be_written(path: Path, folder: Path, fault: str, monkeypatch: pytest.MonkeyPatch) -> None:
    from mgx_numba.graph import atomic_file

    def refused(*args: Any) -> None:
        raise OSError(28 if fault == "full" else 30, "no room")

    if fault == "gone":
        monkeypatch.setattr(saved_plans, "make_folder", lambda folder: shutil.rmtree(default_folder()))
    elif fault == "a file":
        monkeypatch.setenv("MGX_CACHE_DIR", str(path))
    elif fault == "a long name":  # nothing in it can be looked up, as in a folder of another user
        monkeypatch.setenv("MGX_CACHE_DIR", str(folder / ("x" * 300)))
    else:
        monkeypatch.setattr(atomic_file, "_write_pieces", refused)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of kernels that are not kept
        for _ in range(2):
            check(result(path))
            check(InferenceSession(path).run(None, {"x": X})[0])


def test_the_folder_is_deleted_midway(path: Path, folder: Path) -> None:
    result(path)
    net = migraphx.parse_onnx(path)
    shutil.rmtree(folder / "plans")
    check(net.compile("cpu", num_threads=1).run({"x": X})[0])
    net = migraphx.parse_onnx(path).compile("cpu", num_threads=1)
    shutil.rmtree(folder / "plans")
    check(net.run({"x": X})[0])
    check(result(path))


def test_a_plan_with_large_constants_delayed_the_first_result(
    path: Path, monkeypatch: pytest.MonkeyPatch, work: list[str]
) -> None:
    """`compile` wrote hundreds of megabytes before it returned."""
    begun, wanted = threading.Event(), threading.Event()

    def slow(*given: Any) -> bool:
        begun.set()
        return wanted.wait(60) and write(*given)

    write = saved_plans.write
    monkeypatch.setattr(saved_plans, "_AT_ONCE_BYTES", -1)
    monkeypatch.setattr(saved_plans, "write", slow)
    check(result(path))
    assert begun.wait(60) and not list((default_folder() / "plans" / "cpu").glob("*"))
    wanted.set()
    check(result(path))
    check(InferenceSession(path, SessionOptions()).run(None, {"x": X})[0])
    assert work == ["read", "compiled"] * 2  # the session's options are others


def test_a_process_ended_before_its_plan_was_written(path: Path, work: list[str]) -> None:
    program = (
        "import sys, mgx_numba\n"
        "from mgx_numba.api import saved_plans\n"
        "saved_plans._AT_ONCE_BYTES = -1\n"
        "mgx_numba.parse_onnx(sys.argv[1]).compile('cpu', num_threads=1)\n"
    )
    said(program, path)
    check(result(path))
    assert work == []


def test_two_processes_at_once(path: Path) -> None:
    program = (
        "import sys, threading, numpy as np, mgx_numba\n"
        "x = np.load(sys.argv[2])\n"
        "def work():\n"
        "    for k in range(2):\n"
        "        net = mgx_numba.parse_onnx(sys.argv[1]).compile('cpu', num_threads=1)\n"
        "        found.append(np.asarray(net.run({'x': x})[0]))\n"
        "found = []\n"
        "threads = [threading.Thread(target=work) for _ in range(2)]\n"
        "[t.start() for t in threads]; [t.join() for t in threads]\n"
        "assert len(found) == 4 and all((f == found[0]).all() for f in found)\n"
        "np.save(sys.argv[3], found[0])\n"
    )
    from concurrent.futures import ThreadPoolExecutor

    np.save(path.parent / "x.npy", X)
    places = [path.parent / f"{k}.npy" for k in range(2)]
    with ThreadPoolExecutor(2) as pool:
        list(pool.map(lambda place: said(program, path, path.parent / "x.npy", place), places))
    for place in places:
        check(np.load(place))


def test_initializers_of_a_session_that_was_found_can_be_overridden(tmp_path: Path, work: list[str]) -> None:
    proto = network()
    proto.graph.input.append(helper.make_tensor_value_info("w", TensorProto.FLOAT, [12, 7]))
    path = tmp_path / "net.onnx"
    onnx.save(proto, path)
    for reads in (1, 2):  # each session's own for the initializer
        session = InferenceSession(path)
        assert [(a.name, a.shape) for a in session.get_overridable_initializers()] == [("w", [12, 7])]
        check(session.run(None, {"x": X})[0])
        assert work.count("read") == reads
        check(session.run(None, {"x": X, "w": weights(3)})[0], 3)
        assert work.count("read") == reads + 1


def test_a_tensorflow_model_is_not_read_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from mgx_numba.frontends import tf

    graph = Graph()
    graph.add("Relu", "y", [graph.input("x", [2, 12])], T=Kind(np.float32))
    path = tmp_path / "net.pb"
    path.write_bytes(graph.proto.SerializeToString())
    for count in range(3):
        if count:
            monkeypatch.setattr(tf, "parse_tf", lambda *args, **options: pytest.fail("read again"))
        net = migraphx.parse_tf(path) if count < 2 else migraphx.parse_tf_buffer(path.read_bytes())
        np.testing.assert_array_equal(net.compile("cpu").run({"x": X})[0], np.maximum(X, 0))


def test_the_driver_finds_lists_and_clears_what_is_kept(
    path: Path, capsys: pytest.CaptureFixture[str], work: list[str]
) -> None:
    from mgx_numba.driver.main import main

    for _ in range(2):
        assert main(["run", str(path), "-o", str(path.parent / "y.npz")]) == 0
    assert work == ["read", "compiled"]
    assert main(["run", str(path), "--no-plan-cache"]) == 0
    assert work == ["read", "compiled"] * 2
    capsys.readouterr()
    assert main(["cache"]) == 0
    said = capsys.readouterr().out
    assert "plans: 1 files" in said and "models: 1 files" in said
    objects = len(list((default_folder() / "objects").iterdir()))
    assert main(["cache", "--clear", "plans"]) == 0
    assert "removed 2 files" in capsys.readouterr().out and kept() == []
    assert len(list((default_folder() / "objects").iterdir())) >= objects  # the suite's store is shared


def test_a_large_file_is_hashed_again_when_it_was_written_to(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lineage, "_HELD_BYTES", 0)
    monkeypatch.setattr(digests, "REMEMBERED_BYTES", 1)
    monkeypatch.setattr(digests, "COARSE_TICK", -(10**15))  # as if it had been written long ago
    status = path.stat()
    check(result(path))
    hashed = []
    digest = digests.content_digest
    monkeypatch.setattr(digests, "content_digest", lambda *given: hashed.append(1) or digest(*given))
    check(result(path))
    assert hashed == []
    for seed in (1, 2):
        data = network(seed).SerializeToString()
        if seed == 1:
            path.write_bytes(data)
        else:
            path.with_name("new").write_bytes(data)
            path.with_name("new").replace(path)
        os.utime(path, ns=(status.st_atime_ns, status.st_mtime_ns))
        assert path.stat().st_size == status.st_size
        check(result(path), seed)
        assert hashed
        hashed.clear()


def test_weights_are_mapped_from_the_plan(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(plan_file, "LARGE", 1)
    result(path)
    net = migraphx.parse_onnx(path).compile("cpu", num_threads=1)
    constants = net.compiled.executable.plan.constants
    assert constants and not any(array.flags.writeable for array in constants)
    shutil.rmtree(default_folder() / "plans")
    check(net.run({"x": X})[0])


def test_a_plan_that_was_copied_is_checked_once(path: Path) -> None:
    result(path)
    (plan,) = (default_folder() / "plans").rglob("*.plan")
    written = plan.stat().st_mtime_ns
    os.utime(plan)
    check(result(path))
    assert plan.stat().st_mtime_ns == written


def test_programs_kept_their_files_open(tmp_path: Path) -> None:
    path = tmp_path / "net.onnx"
    onnx.save(network(), path, save_as_external_data=True, location="w.bin", size_threshold=0)
    os.utime(tmp_path / "w.bin", (1, 1))
    programs = [migraphx.parse_onnx(path).compile("cpu", num_threads=1) for _ in range(5)]
    opened = [Path(os.path.realpath(entry)) for entry in Path("/proc/self/fd").iterdir()]
    assert not [file for file in opened if tmp_path in file.parents]
    for net in programs:
        check(net.run({"x": X})[0])
