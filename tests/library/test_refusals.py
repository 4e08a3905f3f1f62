"""Programs that cannot become a library are refused with the reason."""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
import pytest
from onnx import TensorProto, helper

import mgx_numba as migraphx
from mgx_numba.codegen.cpu import host
from mgx_numba.codegen.elf import data_object, read_object
from mgx_numba.driver.main import main
from mgx_numba.errors import CompileError, FormatError, MgxError, OptionError, UnsupportedError
from mgx_numba.runtime.cpu.library import writer
from mgx_numba.runtime.cpu.library.cpuid import needed_bits
from mgx_numba.targets.cpu.dynamic import DynamicProgram

from ..frontends.support import make_model
from ..values import normal

FLOAT = TensorProto.FLOAT


def parsed(*nodes: object, lens: tuple[int, ...] = (3, 3), **options: object) -> migraphx.program:
    model = make_model(list(nodes), {"x": np.zeros(lens, np.float32)}, {"y": FLOAT})  # type: ignore[arg-type]
    return migraphx.parse_onnx_buffer(model.SerializeToString(), **options)


def relu() -> migraphx.program:
    return parsed(helper.make_node("Relu", ["x"], ["y"]))


def test_each_host_step_is_named_with_its_reason(tmp_path: Path) -> None:
    distinct = helper.make_node("Unique", ["x"], ["d"], axis=0)
    program = parsed(distinct, helper.make_node("Relu", ["d"], ["y"])).compile("cpu")
    with pytest.raises(UnsupportedError, match=r"(?s)unique\[.*\]\(x\).*: lower_unique: the number of distinct values"):
        program.export_library(tmp_path)
    assert not list(tmp_path.iterdir())


def test_plans_for_fixed_lengths_are_beside_the_symbolic_plan(tmp_path: Path) -> None:
    """Whether a program could be exported depended on the lengths that it had run."""
    model = make_model([helper.make_node("Relu", ["x"], ["y"])], {"x": normal(3, 4)}, {"y": FLOAT})
    model.graph.input[0].type.tensor_type.shape.dim[0].dim_param = "n"
    ranges = {"default_dyn_dim_value": migraphx.shape.dynamic_dimension(1, 4)}
    program = migraphx.parse_onnx_buffer(model.SerializeToString(), **ranges).compile("cpu")
    assert isinstance(program.compiled, DynamicProgram)
    program.compiled.fixed_plan_for({"x": (2, 4)})
    assert program.export_library(tmp_path, link=False).exists()
    with pytest.raises(UnsupportedError, match="C\\+\\+ take libraries of fixed lengths"):
        program.save(tmp_path / "a.mxr", embed_library=True)


def test_other_targets_and_uncompiled_programs_are_refused(tmp_path: Path) -> None:
    with pytest.raises(MgxError, match="the program is not compiled"):
        relu().export_library(tmp_path)
    with pytest.raises(OptionError, match="only the target cpu writes libraries"):
        relu().compile("ref").export_library(tmp_path)


@pytest.mark.parametrize("name", ["", "a-b", "1st", "ä", "a b", "_x"])
def test_name_is_an_identifier(name: str, tmp_path: Path) -> None:
    with pytest.raises(OptionError, match="is no identifier"):
        relu().compile("cpu").export_library(tmp_path, name)


def test_name_of_the_common_header_is_taken(tmp_path: Path) -> None:
    with pytest.raises(OptionError, match="the name mgx_numba is that of a header"):
        relu().compile("cpu").export_library(tmp_path, "mgx_numba")


def test_compiler_that_fails_tells_why(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    program = relu().compile("cpu")
    monkeypatch.setenv("CC", f"{sys.executable} -c 'import sys; sys.exit(\"no such flag\")'")
    with pytest.raises(CompileError, match=r"(?s)failed with status 1:\n.*no such flag"):
        program.export_library(tmp_path)
    monkeypatch.setenv("CC", "/nowhere/cc")
    with pytest.raises(CompileError, match="there is no C compiler"):
        program.export_library(tmp_path, link=True)
    assert program.export_library(tmp_path) == tmp_path / "lib" / "model-objects"


def test_folder_that_cannot_be_written_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(FormatError, match=r"file/.*: cannot be written: Not a directory"):
        relu().compile("cpu").export_library(tmp_path / "file", link=False)


def test_too_many_weights_are_not_embedded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    model = make_model(
        [helper.make_node("Add", ["x", "c"], ["y"])], {"x": normal(3, 40)}, {"y": FLOAT}, constants={"c": normal(40)}
    )
    program = migraphx.parse_onnx_buffer(model.SerializeToString()).compile("cpu")
    monkeypatch.setattr(writer, "_EMBEDDED_BYTES", 100)
    with pytest.raises(OptionError, match=r"\d+ bytes of weights cannot be inside of a library"):
        program.export_library(tmp_path, embed_weights=True)


def test_features_must_be_those_of_the_compilation(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    program = relu().compile("cpu")
    monkeypatch.setenv(host.ENVIRONMENT, "sse")
    with pytest.raises(OptionError, match="compiled for other CPU features"):
        program.export_library(tmp_path)


def test_every_feature_of_this_machine_is_known() -> None:
    bits = needed_bits(host.features())
    assert {"sse2", "cmov"} <= {bit.name for bit in bits} <= host.features()
    with pytest.raises(
        UnsupportedError, match="whether a CPU has avx4096; compile without, by MGX_CPU_FEATURES=-avx4096"
    ):
        needed_bits({"sse", "avx4096"})


@pytest.mark.parametrize("size", [1, 63, 64, 4097])
def test_object_of_data_is_read_back(size: int) -> None:
    data = bytes(k % 251 for k in range(size))
    found = read_object(b"".join(data_object("some_data", [data[:7], data[7:]], size, 4096)))
    assert found.defined == {"some_data"} and not found.undefined
    section = found.sections[1]
    assert (section.data, section.alignment) == (data, 4096)


def test_driver_writes_a_library(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    model = make_model([helper.make_node("Relu", ["x"], ["y"])], {"x": normal(3, 4)}, {"y": FLOAT})
    file = tmp_path / "1 net.onnx"
    file.write_bytes(model.SerializeToString())
    assert main(["compile", str(file), "--library", str(tmp_path / "out")]) == 0
    written = Path(capsys.readouterr().out.strip())
    assert written.exists() and "model_1_net" in written.name
    assert main(["compile", str(file), "--embed-weights"]) == 2
    assert "--embed-weights needs --library FOLDER" in capsys.readouterr().err
    assert main(["compile", str(file), "--library", str(tmp_path), "--output", "x"]) == 2
    assert "--library writes a folder of its own" in capsys.readouterr().err
