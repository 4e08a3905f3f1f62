"""Machine code in a file: used if the reader trusts it and it fits this environment, else skipped."""

from __future__ import annotations

import hashlib
import os
import signal
import subprocess
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import llvmlite.binding as llvm
import msgpack
import numpy as np
import pytest

import mgx_numba as migraphx
from mgx_numba.codegen import files
from mgx_numba.codegen.cpu import host
from mgx_numba.driver.main import main
from mgx_numba.errors import FormatError, OptionError
from mgx_numba.graph.mxr import OBJECTS

from ..mutation.trees import file_tree
from ..running import ended

READER = """
import sys
import numpy as np
import mgx_numba as migraphx
net = migraphx.load(sys.argv[1], trust_objects=sys.argv[2] == "trust")
(result,) = net.run({"x": np.arange(12, dtype=np.float32).reshape(3, 4)})
print(np.array(result).tolist())
print("numba" in sys.modules)
"""


def network() -> migraphx.program:
    """``relu(x @ w - 1)``: a product with an epilogue, for two threads."""
    net = migraphx.program()
    main = net.get_main_module()
    x = main.add_parameter("x", migraphx.shape(type="float_type", lens=[3, 4]))
    w = main.add_literal(np.arange(20, dtype=np.float32).reshape(4, 5))
    one = main.add_literal(np.ones((3, 5), np.float32))
    x = main.add_instruction(migraphx.op("dot"), [x, w])
    x = main.add_instruction(migraphx.op("sub"), [x, one])
    main.add_return([main.add_instruction(migraphx.op("relu"), [x])])
    return net


def expected() -> list[list[float]]:
    x, w = np.arange(12, dtype=np.float32).reshape(3, 4), np.arange(20, dtype=np.float32).reshape(4, 5)
    return np.maximum(x @ w - 1, 0).tolist()


def results(net: migraphx.program) -> list[list[float]]:
    return np.array(net.run({"x": np.arange(12, dtype=np.float32).reshape(3, 4)})[0]).tolist()


@pytest.fixture(scope="module")
def embedded(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("embedded") / "net.mxr"
    migraphx.save(network().compile(num_threads=2), path, embed_objects=True)
    return path


def read(path: Path, how: str, folder: Path) -> subprocess.CompletedProcess[str]:
    """Load and run in a fresh process with an object store of its own."""
    return ended(READER, path, how, MGX_CACHE_DIR=folder)


def edited(path: Path, target: Path, edit: Callable[[dict[str, Any]], Any]) -> Path:
    """A copy whose machine code is changed."""
    root = file_tree(path.read_bytes())
    edit(root[OBJECTS])
    target.write_bytes(msgpack.packb(root))
    return target


def test_trusted_code_runs_in_a_fresh_process_that_compiles_nothing(embedded: Path, tmp_path: Path) -> None:
    done = read(embedded, "trust", tmp_path)
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.splitlines() == [str(expected()), "False"]
    assert not (tmp_path / "objects").exists()  # neither is a store filled with what the file brought


def test_code_is_there_on_demand_only(embedded: Path, tmp_path: Path) -> None:
    net = migraphx.load(embedded)
    plain = migraphx.save_buffer(net)
    assert OBJECTS not in msgpack.unpackb(plain)
    assert OBJECTS in msgpack.unpackb(migraphx.save_buffer(net, embed_objects=True))
    assert results(migraphx.load_buffer(plain, trust_objects=True)) == expected()
    assert embedded.stat().st_size > len(plain)


def hostile_object(symbol: str) -> bytes:
    """An object whose kernel ends the process by an illegal instruction."""
    text = f"declare void @llvm.trap()\ndefine void @{symbol}(i64* %a, i64 %b, i64 %c) {{\n"
    text += "call void @llvm.trap()\nunreachable\n}"
    machine = host.target_machine()
    module = llvm.parse_assembly(text.replace("i64*", "ptr"))
    module.triple = machine.triple
    return machine.emit_object(module)


def make_hostile(code: dict[str, Any]) -> None:
    for kernel in code["kernels"]:
        data = hostile_object(kernel["symbol"])
        kernel.update(object=[data], sha256=hashlib.sha256(data).hexdigest())


@pytest.mark.skipif(not hasattr(signal, "SIGILL"), reason="no signals here")
def test_hostile_code_runs_when_trusted_and_never_without(embedded: Path, tmp_path: Path) -> None:
    hostile = edited(embedded, tmp_path / "hostile.mxr", make_hostile)
    done = read(hostile, "no", Path(os.environ["MGX_CACHE_DIR"]))
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.splitlines()[0] == str(expected())
    assert read(hostile, "trust", tmp_path).returncode == -signal.SIGILL  # the code is hostile indeed


def test_code_without_trust_is_not_even_read(embedded: Path, tmp_path: Path) -> None:
    def spoil(code: dict[str, Any]) -> None:
        code.clear()
        code["kernels"] = "none"

    spoilt = edited(embedded, tmp_path / "spoilt.mxr", spoil)
    assert results(migraphx.load(spoilt)) == expected()
    with pytest.raises(FormatError, match=r"machine code: .*identity"):
        migraphx.load_buffer(spoilt.read_bytes(), trust_objects=True)  # a file's plan may be kept, which needs no code


@pytest.mark.parametrize(
    ("field", "value", "text"),
    [
        ("cpu", "skylake", r"cpu \(skylake in the file"),
        ("features", "+none", r"features \(\+none in the file"),
        ("llvmlite", "0.1", r"llvmlite \(0\.1 in the file"),
        ("numba", "0.1", r"numba \(0\.1 in the file"),
        ("intrinsics", "0", r"intrinsics \(0 in the file"),
    ],
)
def test_code_of_another_environment_is_not_used_and_says_why(
    embedded: Path, tmp_path: Path, field: str, value: str, text: str
) -> None:
    def other(code: dict[str, Any]) -> None:
        make_hostile(code)
        code["identity"][field] = value

    path = edited(embedded, tmp_path / "other.mxr", other)
    with pytest.warns(RuntimeWarning, match=text) as told:
        net = migraphx.load(path, trust_objects=True)
    assert len(told) == 1
    assert results(net) == expected()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert results(net.compile(num_threads=1)) == expected()


def test_code_under_other_symbols_is_never_found(embedded: Path, tmp_path: Path) -> None:
    """The symbol is the hash of the environment: a wrong one cannot bring code of another machine in."""

    def rename(code: dict[str, Any]) -> None:
        for number, kernel in enumerate(code["kernels"]):
            kernel["symbol"] = f"mgx_{number:024x}"

    path = edited(embedded, tmp_path / "renamed.mxr", rename)
    done = read(path, "trust", tmp_path)
    assert done.stdout.splitlines()[0] == str(expected())
    assert any((tmp_path / "objects").rglob("*"))  # kernels were compiled, here or in a worker
    assert done.stderr.count("is absent") == 1


@pytest.mark.parametrize("damage", ["a bit", "not ELF"])
def test_damaged_code_is_built_again(embedded: Path, tmp_path: Path, damage: str) -> None:
    def spoil(code: dict[str, Any]) -> None:
        for kernel in code["kernels"]:
            data = bytearray(kernel["object"][0])
            data[len(data) // 2] ^= 1
            kernel["object"] = [bytes(data) if damage == "a bit" else b"none"]
            if damage == "not ELF":
                kernel["sha256"] = hashlib.sha256(b"none").hexdigest()

    path = edited(embedded, tmp_path / "damaged.mxr", spoil)
    done = read(path, "trust", tmp_path)
    assert done.stdout.splitlines()[0] == str(expected())
    assert any((tmp_path / "objects").rglob("*"))  # kernels were compiled, here or in a worker
    assert done.stderr.count("is damaged") == 1


@pytest.mark.parametrize(
    ("edit", "text"),
    [
        (lambda code: code.update(kernels={}), "'kernels' must be an array"),
        (lambda code: code.update(identity=3), "identity"),
        (lambda code: code["kernels"].append(7), "must have strings"),
        (lambda code: code["kernels"][0].update(symbol="memcpy"), "kernel 0 must have strings"),
        (lambda code: code["kernels"][0].update(object="text"), "'object' of kernel 0 must be binary"),
    ],
)
def test_malformed_code_is_refused(embedded: Path, tmp_path: Path, edit: Any, text: str) -> None:
    with pytest.raises(FormatError, match=text):
        migraphx.load(edited(embedded, tmp_path / "malformed.mxr", edit), trust_objects=True)


def test_where_there_is_no_code_to_embed(tmp_path: Path) -> None:
    with pytest.raises(OptionError, match="not compiled"):
        migraphx.save(network(), tmp_path / "net", embed_objects=True)
    with pytest.raises(OptionError, match="target ref"):
        migraphx.save_buffer(network().compile(migraphx.get_target("ref")), embed_objects=True)
    with pytest.raises(OptionError, match="msgpack files only"):
        network().compile(num_threads=2).save(tmp_path / "net", format="json", embed_objects=True)
    assert list(tmp_path.iterdir()) == []


def test_embedding_again_needs_no_store(embedded: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(files.ENVIRONMENT, str(tmp_path / "empty"))
    net = migraphx.load(embedded, trust_objects=True)
    net.save(tmp_path / "again.mxr", embed_objects=True)
    assert (tmp_path / "again.mxr").read_bytes() == embedded.read_bytes()
    assert not (tmp_path / "empty" / "objects").exists()


def test_driver_embeds_and_trusts(tmp_path: Path, capsys: Any) -> None:
    plain, compiled = str(tmp_path / "plain.mxr"), str(tmp_path / "compiled.mxr")
    migraphx.save(network(), plain)
    assert main(["compile", plain, "--num-threads", "2", "-o", compiled, "--embed-objects"]) == 0
    assert OBJECTS in msgpack.unpackb(Path(compiled).read_bytes())
    assert main(["run", compiled, "--trust-objects", "--num-threads", "2"]) == 0
    assert main(["compile", plain, "--embed-objects"]) == 2
    assert "--embed-objects needs" in capsys.readouterr().err
