"""MIGraphX's C interface: the library migraphx_c and C programs that link it (``c_program.c``, ``c_surface.c``)."""

from __future__ import annotations

import ctypes
import re
import shlex
import sys
from pathlib import Path

import numpy as np
import onnx
import pytest

import mgx_numba as migraphx
from mgx_numba.errors import CompileError
from mgx_numba.runtime.cpu.library import CPP_PREFIX
from mgx_numba.runtime.cpu.library.linking import link_c_interface

from .support import CC, finished, needs_compiler, with_driver
from .test_compiler import network, write_models

HEADERS = CPP_PREFIX / "include" / "migraphx"
OF_MIGRAPHX = 168  # functions of migraphx.h: 167 of release 2.16, and migraphx_compile_options_set_compile_mode
OWN = 2  # migraphx_file_options_set_trust_objects, migraphx_last_error
REFUSALS = """\
migraphx_parse_onnx: no such file: .*none.onnx.*
migraphx_parse_onnx_buffer: the model has no graph
migraphx_parse_onnx_buffer: data is NULL
migraphx_program_compile: program is NULL
migraphx_program_run: out is NULL
migraphx_target_create: unknown target fpga; known: cpu, gpu, ref
migraphx_experimental_custom_op_register: operator scaled: compute or compute_shape is not set
migraphx_shape_index: index 0 of 0 elements
migraphx_operation_create: leaky_relu has no attribute 'beta'.*
migraphx_operation_create: unknown operator 'nothing'.*
migraphx_operation_name: out_size is 6, leaky_relu needs 11
migraphx_module_add_instruction: scaled: .*one input is needed, got 2
migraphx_module_add_instruction: out is NULL
migraphx_program_run: Parameter not found: x .*
migraphx_program_run_trace: callback is NULL
migraphx_program_run_trace: trace of cpu::leaky_relu_kernel: the callback gave the status 4
migraphx_shape_create: shape: .*
migraphx_module_add_instruction: an instruction is of another program
"""
OF_THE_SURFACE = [
    "migraphx_dynamic_dimension_create_min_max: dynamic dimension: min 5 is above max 4",
    "migraphx_dynamic_dimensions_get: index 2 of 2 elements",
    r"migraphx_get_onnx_operator_name_at_index: index (\d+) of \1 elements",
    "migraphx_parse_tf_buffer: the model is no TensorFlow GraphDef.*",
    "migraphx_save: Unknown format: yaml; known: msgpack, json",
]
OF_A_RUN = (
    "migraphx_arguments_get: index 1 of 1 elements\nmigraphx_program_parameter_shapes_get: Parameter not found: y\n"
)
NULLS = """
import ctypes, sys
library = ctypes.CDLL(sys.argv[1])
for name in sys.argv[2:]:
    print(getattr(library, name)(*[ctypes.c_void_p()] * 8), flush=True)
"""


@pytest.fixture(scope="module")
def flags(tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    """Flags for C programs, as the driver prints them after it has built the library."""
    env = {**with_driver(), "CXXFLAGS": "-O0 -Wall -Wextra -Werror"}
    command = [sys.executable, "-m", "mgx_numba.driver.main", "cpp", "--c", tmp_path_factory.mktemp("c") / "lib"]
    return shlex.split(finished(command, env=env))


def _functions() -> list[str]:
    """Names of the functions of the table, without those that every handle has."""
    return re.findall(r"^MIGRAPHX_\w*FUNCTION\((\w+)", (HEADERS / "functions.h").read_text(), re.M)


@needs_compiler
def test_library_has_all_functions_and_none_aborts_on_null(flags: list[str]) -> None:
    (folder,) = (flag[2:] for flag in flags if flag.startswith("-L"))
    library = Path(folder, "libmigraphx_c.so")
    handles = re.findall(r"m\((\w+)\)", (HEADERS / "migraphx.h").read_text())
    of_handles = [f"{name}_{what}" for name in handles for what in ("destroy", "assign_to")]
    names = [f"migraphx_{name}" for name in (*_functions(), *of_handles)]
    assert len(set(names)) + 1 == OF_MIGRAPHX + OWN
    loaded = ctypes.CDLL(str(library))
    assert all(hasattr(loaded, name) for name in (*names, "migraphx_last_error"))
    told = finished([sys.executable, "-c", NULLS, library, *names], env=with_driver()).split()
    assert told == ["0" if name.endswith("_destroy") else "1" for name in names]


@needs_compiler
@pytest.mark.skipif(CC is None, reason="no C compiler")
def test_c_program_parses_builds_runs_and_is_refused(
    flags: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    onnx.save(network(["n", 6]), tmp_path / "net.onnx")
    own = migraphx.parse_onnx(tmp_path / "net.onnx", map_input_dims={"x": [4, 6]}).compile("cpu", fast_math=False)
    monkeypatch.setenv("CXXFLAGS", "-O0 -Wall -Wextra -Werror")
    with_interface = own.export_library(tmp_path / "with", "net", c_interface=True)
    own.export_library(tmp_path / "out", "net")
    program, alone = tmp_path / "program", tmp_path / "alone"
    source = Path(__file__).with_name("c_program.c")
    finished([CC, "-std=c11", "-Wall", "-Wextra", "-Werror", source, *flags, "-o", program])
    told = finished([program, tmp_path], env=with_driver())
    assert re.fullmatch(3 * OF_A_RUN + REFUSALS + "all hold\n", told), told
    # linked to the exported library alone, which is then found by its name
    found = with_interface.parent
    folders = [f"-I{tmp_path / 'with' / 'include'}", f"-L{found}", f"-Wl,-rpath,{found}"]
    finished([CC, "-std=c11", source, *folders, "-lnet", "-o", alone])
    for executable, library in ((program, tmp_path / "out" / "lib" / "libnet.so"), (alone, "libnet.so")):
        there = finished([executable, tmp_path, library], env={"MGX_DRIVER": "/nowhere"})
        refusal = "migraphx_quantize_fp16: the program was loaded as a library, which can only run"
        assert there == f"{OF_A_RUN}{refusal}\nall hold\n"
    x = np.asarray(migraphx.argument.load(tmp_path / "input.msgpack"))
    wanted = np.asarray(own.run({"x": x})[0])
    for name in ("float", "loaded", "library"):
        np.testing.assert_array_equal(migraphx.argument.load(tmp_path / f"{name}.msgpack"), wanted)
    half = migraphx.parse_onnx(tmp_path / "net.onnx", map_input_dims={"x": [4, 6]})
    migraphx.quantize_fp16(half)
    (wanted,) = half.compile("cpu").run({"x": x})
    np.testing.assert_array_equal(migraphx.argument.load(tmp_path / "half.msgpack"), wanted)


@needs_compiler
@pytest.mark.skipif(CC is None, reason="no C compiler")
def test_c_programs_call_every_function(flags: list[str], tmp_path: Path) -> None:
    write_models(tmp_path)
    sources = [Path(__file__).with_name(f"c_{name}.c") for name in ("program", "surface")]
    called = set(re.findall(r"\bmigraphx_(\w+)\(", "".join(source.read_text() for source in sources)))
    assert set(_functions()) <= called
    program = tmp_path / "surface"
    finished([CC, "-std=c11", "-Wall", "-Wextra", "-Werror", sources[1], *flags, "-o", program])
    told = finished([program, tmp_path], env=with_driver())
    assert told.endswith("all hold\n")
    for line, pattern in zip(told.splitlines(), OF_THE_SURFACE, strict=False):
        assert re.fullmatch(pattern, line)
    assert "else:@0 = allocate[" in told


def test_c_interface_needs_a_compiler(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CXX", "no-such-compiler")
    with pytest.raises(CompileError, match="there is no C.. compiler"):
        link_c_interface(tmp_path)
    monkeypatch.setenv("CXX", shlex.join([sys.executable, "-c", "raise SystemExit('no source')"]))
    with pytest.raises(CompileError, match="failed with status 1:\nno source"):
        link_c_interface(tmp_path)
