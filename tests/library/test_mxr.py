"""`.mxr` files with a library in them, loaded in C++ without Python (``mxr.cpp``, built with sanitizers)."""

from __future__ import annotations

import os
import subprocess
import zlib
from pathlib import Path

import msgpack
import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper

import mgx_numba as migraphx
from mgx_numba.driver.main import main
from mgx_numba.errors import MgxError, OptionError, UnsupportedError
from mgx_numba.graph import wire
from mgx_numba.graph.machine_code import LIBRARY
from mgx_numba.runtime.cpu.library import CPP_PREFIX

from ..frontends.support import make_model
from ..mutation.trees import file_tree
from ..values import normal
from .support import build, finished, needs_compiler

pytestmark = needs_compiler

SOURCE = Path(__file__).with_name("mxr.cpp")
NO_PYTHON = {**os.environ, "MGX_DRIVER": "/nowhere/mgx-numba-driver"}


def network() -> onnx.ModelProto:
    """Return a model with a convolution that has large weights, and a branch without weights."""
    feeds = {"image": normal(1, 3, 8, 8)}
    nodes = [
        helper.make_node("Conv", ["image", "w"], ["a"], pads=[1, 1, 1, 1]),
        helper.make_node("Softmax", ["a"], ["y"], axis=1),
        helper.make_node("Relu", ["image"], ["z"]),
    ]
    outputs = {"y": TensorProto.FLOAT, "z": TensorProto.FLOAT}
    return make_model(nodes, feeds, outputs, constants={"w": normal(64, 3, 3, 3, seed=1)})


@pytest.fixture(scope="module")
def program() -> migraphx.program:
    return migraphx.parse_onnx_buffer(network().SerializeToString()).compile("cpu", num_threads=2)


@pytest.fixture(scope="module")
def loader(tmp_path_factory: pytest.TempPathFactory) -> Path:
    flags = ("-fsanitize=address,undefined", "-fno-sanitize-recover=all", "-O0")  # -O1 takes four times as long
    return build(SOURCE, CPP_PREFIX / "include", tmp_path_factory.mktemp("mxr") / "mxr", *flags)


@pytest.fixture(scope="module")
def file(program: migraphx.program, tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("mxr") / "net.mxr"
    program.save(path, embed_library=True)
    return path


def refused(loader: Path, *arguments: object) -> str:
    """Return the message of a run that must fail."""
    done = subprocess.run(
        [loader, "run", *map(str, arguments)], capture_output=True, text=True, env=NO_PYTHON, timeout=60, check=False
    )
    assert done.returncode == 1, done.stderr
    return done.stdout.strip()


def test_trusted_file_runs_without_python(program: migraphx.program, loader: Path, file: Path, tmp_path: Path) -> None:
    assert finished([loader, "run", file, "trust"], cwd=tmp_path, env=NO_PYTHON) == "library 1\n"
    image = np.fromfile(tmp_path / "image.bin", np.float32).reshape(1, 3, 8, 8)
    for k, wanted in enumerate(program.run({"image": image})):
        assert (tmp_path / f"output{k}.bin").read_bytes() == np.asarray(wanted).tobytes()


def test_python_passes_the_library_over(program: migraphx.program, file: Path) -> None:
    again = migraphx.load(file)
    feeds = {"image": normal(1, 3, 8, 8, seed=4)}
    for found, wanted in zip(again.run(feeds), program.run(feeds), strict=True):
        np.testing.assert_array_equal(found, wanted)
    assert LIBRARY in msgpack.unpackb(file.read_bytes())
    again.save(file.with_name("plain.mxr"))
    assert LIBRARY not in msgpack.unpackb(file.with_name("plain.mxr").read_bytes())


def test_without_trust_or_library_the_compiler_is_needed(loader: Path, file: Path, tmp_path: Path) -> None:
    said = refused(loader, file)
    assert said.startswith("8 ") and "if you trust the file: file_options::set_trust_objects()" in said
    assert "the compiler /nowhere/mgx-numba-driver cannot be started: No such file or directory" in said
    migraphx.load(file).save(tmp_path / "plain.mxr")
    assert "trust the file" not in refused(loader, tmp_path / "plain.mxr", "trust")
    (tmp_path / "empty.mxr").touch()
    said = refused(loader, tmp_path / "empty.mxr", "trust")
    assert said.startswith("7 ") and "at byte 0: the data end" in said
    assert "cannot open shared object file" in refused(loader, tmp_path / "none.mxr", "trust")


def test_damage_is_told(loader: Path, file: Path, tmp_path: Path) -> None:
    tree = file_tree(file.read_bytes())
    code = tree[LIBRARY]["code"][0]
    assert zlib.crc32(code) == tree[LIBRARY]["checksum"]

    def with_library(**changes: object) -> Path:
        path = tmp_path / "changed.mxr"
        path.write_bytes(msgpack.packb({**tree, LIBRARY: {**tree[LIBRARY], **changes}}))
        return path

    assert "the library in the file is damaged" in refused(loader, with_library(code=[code[:-1] + b"x"]), "trust")
    assert "bytes are expected" in refused(loader, with_library(code="text"), "trust")
    outside = {"tail": 0, "bytes": 1 << 40}
    assert "bytes are expected" in refused(loader, with_library(weights=outside), "trust")
    head = tree[LIBRARY]["weights"][0]
    cut = refused(loader, with_library(weights=[head[:4096]], pad=b""), "trust")
    assert cut.startswith(("2 program: ", "1 program: load: weights_offset")), cut


def test_damaged_files_never_crash(loader: Path, file: Path, tmp_path: Path) -> None:
    said = finished([loader, "fuzz", file, tmp_path / "changed.mxr", 1, 1500])
    refusals, without, loaded = map(int, said.split())
    assert refusals + without + loaded == 1500 and min(refusals, without, loaded) > 20


def test_two_files_have_their_own_libraries(loader: Path, file: Path, tmp_path: Path) -> None:
    model = make_model(
        [helper.make_node("Add", ["a", "b"], ["c"])], {"a": normal(3), "b": normal(3)}, {"c": TensorProto.FLOAT}
    )
    migraphx.parse_onnx_buffer(model.SerializeToString()).compile("cpu").save(tmp_path / "add.mxr", embed_library=True)
    assert finished([loader, "both", file, tmp_path / "add.mxr"], env=NO_PYTHON) == "1 2\n2 1\n"


def test_blobs_behind_the_tree_are_found(
    program: migraphx.program, loader: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(wire, "LONGEST_BIN", 4096)  # so that code and weights are too long for a `bin`
    program.save(tmp_path / "net.mxr", embed_library=True)
    assert finished([loader, "run", tmp_path / "net.mxr", "trust"], cwd=tmp_path, env=NO_PYTHON) == "library 1\n"


def test_what_cannot_be_a_library_is_refused(tmp_path: Path) -> None:
    distinct = helper.make_node("Unique", ["x"], ["y"], axis=0)
    model = make_model([distinct], {"x": normal(3, 3)}, {"y": TensorProto.FLOAT})
    parsed = migraphx.parse_onnx_buffer(model.SerializeToString())
    with pytest.raises(MgxError, match="the program is not compiled"):
        parsed.save(tmp_path / "net.mxr", embed_library=True)
    with pytest.raises(UnsupportedError, match="steps of the program run in Python"):
        parsed.compile("cpu").save(tmp_path / "net.mxr", embed_library=True)
    model = make_model([helper.make_node("Relu", ["x"], ["y"])], {"x": normal(3, 3)}, {"y": TensorProto.FLOAT})
    compiled = migraphx.parse_onnx_buffer(model.SerializeToString()).compile("cpu")
    with pytest.raises(OptionError, match="machine code can be kept in msgpack files only"):
        compiled.save(tmp_path / "net.json", format="json", embed_library=True)
    assert not list(tmp_path.iterdir())


def test_driver_embeds_a_library(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    onnx.save(network(), tmp_path / "net.onnx")
    assert main(["compile", str(tmp_path / "net.onnx"), "--embed-library", "-o", str(tmp_path / "net.mxr")]) == 0
    assert LIBRARY in msgpack.unpackb((tmp_path / "net.mxr").read_bytes())
    assert main(["compile", str(tmp_path / "net.onnx"), "--embed-library"]) == 2
    assert "--embed-library needs a binary file" in capsys.readouterr().err
