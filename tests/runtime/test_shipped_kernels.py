"""Kernels that ship with the package: found below the object store, refused when damaged, checked by a tool."""

from __future__ import annotations

import ctypes
from pathlib import Path

import onnx
import pytest
from onnx import TensorProto, helper

from mgx_numba.codegen.cpu import identity
from mgx_numba.codegen.cpu.host import host
from mgx_numba.codegen.cpu.identity import environment_identity
from mgx_numba.codegen.cpu.kernel import NAME
from mgx_numba.codegen.cpu.toolchain import compiler, loader
from mgx_numba.codegen.kernel import KernelSource
from mgx_numba.codegen.platform import platform
from mgx_numba.codegen.shipped import NEUTRAL, ShippedKernels, ShippedSection, pack
from mgx_numba.codegen.store import ObjectStore, default_store
from mgx_numba.runtime.cpu.executor import EXECUTOR_KERNELS
from tools.prebuild.build import compiled, differences, files
from tools.prebuild.collect import Collector
from tools.prebuild.corpus.item import Item, parsed
from tools.prebuild.machines import MACHINES, Machine


def _text(value: int) -> str:
    """A kernel that writes a number into its first argument."""
    return f"def kernel(args, begin, end):\n    args[0] = {value} + begin\n"


NAMES = {_text(7): "seven", _text(8): "eight"}


def _source(value: int) -> KernelSource:
    """A new kernel, whose symbol is not known yet."""
    return KernelSource(NAME, "number_kernel", _text(value))


def _compiled(machine: Machine, names: dict[str, str]) -> dict[str, bytes]:
    return compiled([machine], {machine.cpu: names}, jobs=1)[machine.cpu]


@pytest.fixture(scope="module")
def here() -> Machine:
    """This machine, as one that kernels ship for."""
    own = host()
    return Machine(platform().cpu, own.triple, own.features, "this machine")


@pytest.fixture
def folder(tmp_path: Path, here: Machine) -> Path:
    """A folder with a file of two kernels for this machine."""
    ((name, data, _),) = files([here], {here.cpu: NAMES}, jobs=1)
    (tmp_path / name).write_bytes(data)
    return tmp_path


def _file(folder: Path) -> Path:
    (path,) = folder.glob("*.kernels")
    return path


def _result(source: KernelSource, store: ObjectStore) -> int:
    (address,) = loader.load([source], store=store)
    words = (ctypes.c_int64 * 1)()
    ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_int64, ctypes.c_int64)(address)(ctypes.addressof(words), 100, 101)
    return words[0]


def test_kernels_that_ship_were_compiled(folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(compiler, "compile_object", lambda source: pytest.fail(f"{source.name} is compiled"))
    store = ObjectStore(tmp_path / "cache", shipped=ShippedKernels(folder))
    assert [_result(_source(value), store) for value in (7, 8)] == [107, 108]
    assert not (tmp_path / "cache").exists()  # they are not copied
    assert store.get(_source(9)) is None
    monkeypatch.setenv("MGX_CACHE_DIR", str(tmp_path / "other"))
    for setting, found in ((str(folder), True), ("0", False)):
        monkeypatch.setenv("MGX_SHIPPED_KERNELS", setting)
        assert (default_store().get(_source(7)) is not None) is found


def test_kernels_that_ship_served_one_version_of_numba(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    own = identity.versions()
    monkeypatch.setattr(identity, "versions", lambda: {**own, "numba": "0.99", "llvm": "99.0.0"})
    data = ShippedKernels(folder).get(_source(7))
    assert data is not None and _source(7).symbol.encode() in data and NEUTRAL.encode() not in data
    monkeypatch.setattr(identity, "versions", lambda: {**own, "intrinsics": "changed"})
    assert ShippedKernels(folder).get(_source(7)) is None


def test_a_damaged_object_was_run(folder: Path, tmp_path: Path) -> None:
    path = _file(folder)
    data = bytearray(path.read_bytes())
    data[-5] ^= 1  # in one of the two objects
    path.write_bytes(data)
    shipped = ShippedKernels(folder)
    store = ObjectStore(tmp_path / "cache", shipped=shipped)
    with pytest.warns(
        RuntimeWarning, match=r"is not used, so its kernels are compiled: the object of kernel .* is damaged"
    ):
        assert sum(shipped.get(_source(value)) is None for value in (7, 8)) >= 1
    assert [loader.loadable(s, store.get(s) or compiler.compile_object(s)) for s in (_source(7), _source(8))] == [
        True
    ] * 2


@pytest.mark.parametrize("damage", ["short", "magic", "header", "index"])
def test_a_damaged_file_was_read(damage: str, folder: Path) -> None:
    path = _file(folder)
    data = path.read_bytes()
    path.write_bytes(
        {
            "short": data[:9],
            "magic": b"x" + data[1:],
            "header": data[:12] + b"{" + data[13:],
            "index": data.replace(b'"kernels": 2', b'"kernels": 2000000'),
        }[damage]
    )
    shipped = ShippedKernels(folder)
    with pytest.warns(RuntimeWarning, match="is not used, so its kernels are compiled: it"):
        assert shipped.get(_source(7)) is None
    assert shipped.get(_source(8)) is None  # told once


def test_a_folder_that_does_not_exist_was_ignored_without_a_word(tmp_path: Path) -> None:
    shipped = ShippedKernels(tmp_path / "missing")
    with pytest.warns(RuntimeWarning, match="MGX_SHIPPED_KERNELS names a folder that does not exist"):
        assert shipped.get(_source(7)) is None
    assert shipped.get(_source(8)) is None  # told once


def test_the_check_overlooked_a_changed_object(folder: Path, here: Machine) -> None:
    names = {here.cpu: NAMES}
    assert differences(folder, [here], names, jobs=1) == []
    changed = _compiled(here, NAMES)
    first = min(changed)
    changed[first] = _compiled(here, {_text(9): "nine"}).popitem()[1]
    _file(folder).write_bytes(pack([ShippedSection(environment_identity(), here.cpu, changed)]))
    assert ShippedKernels(folder).get(_source(7)) is not None
    (line,) = differences(folder, [here], names, jobs=1)
    assert f"{first[:12]} differs" in line
    only = {here.cpu: {_text(7): "seven"}}
    assert "eight" not in "".join(differences(folder, [here], only, jobs=1, whole=False))
    assert "is no kernel of the corpus" in "".join(differences(folder, [here], only, jobs=1))
    _file(folder).unlink()
    assert len(differences(folder, [here], names, jobs=1)) == 2


def test_making_the_kernels_of_one_machine_dropped_those_of_another(tmp_path: Path) -> None:
    names = {cpu: dict(list(NAMES.items())[: 1 + (cpu == "znver5")]) for cpu in ("haswell", "znver5")}
    for cpu in names:
        ((name, data, _),) = files([MACHINES[cpu]], names, 1, tmp_path)
        (tmp_path / name).write_bytes(data)
    ((_, both, lines),) = files([MACHINES[cpu] for cpu in names], names, 1)
    assert data == both and "haswell" in lines
    assert differences(tmp_path, [MACHINES[cpu] for cpu in names], names, jobs=1) == []


def test_machines_of_a_group_compiled_the_same_kernels_twice() -> None:
    group, narrow = [MACHINES["haswell"], MACHINES["alderlake"]], _text(9)
    names = {"haswell": NAMES, "alderlake": {**NAMES, narrow: "nine"}}
    made = compiled(group, names, jobs=1)
    assert made["haswell"].items() < made["alderlake"].items() and len(made["alderlake"]) == 3
    assert compiled(group[1:], names, jobs=1)["alderlake"] == made["alderlake"]
    assert all(
        MACHINES[one.like].features <= one.features and not MACHINES[one.like].like
        for one in MACHINES.values()
        if one.like
    )


def test_classes_of_equal_objects_stored_them_twice(here: Machine) -> None:
    objects = _compiled(here, NAMES)
    one, two = ({**environment_identity(), "features": name} for name in ("one", "two"))
    alone, both = (
        pack([ShippedSection(one, "", objects)]),
        pack([ShippedSection(one, "", objects), ShippedSection(two, "", objects)]),
    )
    assert sum(map(len, objects.values())) > 2 * (len(both) - len(alone))


def test_a_corpus_is_planned_for_machines_that_are_not_here() -> None:
    inputs = [helper.make_tensor_value_info("x", TensorProto.FLOAT, ["n", 64])]
    nodes = [helper.make_node("Softmax", ["x"], ["y"])]
    graph = helper.make_graph(nodes, "softmax", inputs, [onnx.ValueInfoProto(name="y")])
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 20)])
    before = host()
    collector = Collector([MACHINES["emeraldrapids"], MACHINES["neoverse-v1"]])
    collector.collect([Item("softmax", lambda: parsed(model))])
    assert not collector.failed and host() == before
    own = {kernel.text for kernel in EXECUTOR_KERNELS}
    (wide,), (narrow,) = (names.keys() - own for names in collector.names.values())
    assert wide != narrow  # vectors of 512 and of 128 bits
    (data,) = _compiled(MACHINES["neoverse-v1"], {narrow: "softmax"}).values()
    assert data[18:20] == b"\xb7\x00"  # EM_AARCH64
