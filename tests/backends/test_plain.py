"""A back end and a target known only through the registries: the minimum that a second back end must provide."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

import mgx_numba as migraphx
from mgx_numba.api import options
from mgx_numba.codegen.backend import backend
from mgx_numba.core.shape import Shape
from mgx_numba.core.types import from_numpy
from mgx_numba.errors import OptionError
from mgx_numba.graph.module import Module
from mgx_numba.graph.program import Program
from mgx_numba.targets.registry import compile_for, target_names

from ..driver.support import drive
from . import plain


def chain(m: Module, x, y):
    spread = m.add_instruction("multibroadcast", [y], out_lens=x.shape.lens)
    total = m.add_instruction("add", [x, spread])
    return [m.add_instruction("tanh", [m.add_instruction("mul", [total, total])]), total]


def strided(m: Module, x, y):
    turned = m.add_instruction("transpose", [x], permutation=[1, 0])
    part = m.add_instruction("slice", [m.add_instruction("contiguous", [turned])], axes=[0], starts=[1], ends=[3])
    return [m.add_instruction("concat", [part, m.add_instruction("relu", [part])], axis=0)]


def reduced(m: Module, x, y):
    sums = m.add_instruction("reduce_sum", [m.add_instruction("exp", [x])], axes=[1])
    return [m.add_instruction("div", [x, m.add_instruction("multibroadcast", [sums], out_lens=x.shape.lens)])]


@pytest.mark.parametrize(
    "build, dtype",
    [(b, d) for b in (chain, strided, reduced) for d in ("float32", "float64")] + [(strided, "int32")],
)
def test_a_second_back_end_gives_what_ref_gives(build: Callable, dtype: str):
    rng = np.random.default_rng(3)
    inputs = {"x": rng.normal(size=(3, 5)) * 3, "y": rng.normal(size=(1, 5))}
    arrays = {name: a.astype(dtype) for name, a in inputs.items()}
    program = Program()
    x, y = (program.main.add_parameter(k, Shape(from_numpy(a.dtype), a.shape)) for k, a in arrays.items())
    program.main.add_return(build(program.main, x, y))
    compiled = compile_for("plain", program)
    assert compiled.kernels() and {k.backend for k in compiled.kernels()} == {"plain"}
    for got, wanted in zip(compiled.run(arrays), compile_for("ref", program).run(arrays), strict=True):
        assert got.dtype == wanted.dtype
        np.testing.assert_array_equal(got, wanted)


def test_registries_know_what_was_registered_and_name_it_otherwise():
    assert backend("plain") is plain.BACKEND
    assert target_names()[:2] == ("ref", "cpu") and "plain" in target_names()
    with pytest.raises(OptionError, match="unknown back end 'metal'; known: cpu, gpu, plain"):
        backend("metal")
    with pytest.raises(OptionError, match="unknown target 'metal'; known: ref, cpu, gpu, plain"):
        compile_for("metal", Program())


def test_a_registered_target_is_got_compiled_for_and_run_by_its_name(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(options, "warned", set())
    net = migraphx.program()
    mm = net.get_main_module()
    x = mm.add_parameter("x", migraphx.shape(type="float_type", lens=[2, 3]))
    mm.add_return([mm.add_instruction(migraphx.op("relu"), [x])])
    chosen = migraphx.get_target("plain")
    assert chosen.name() == "plain"
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        net.compile(chosen, device_id=1)  # which this target says it heeds
    with pytest.warns(UserWarning, match="exhaustive_tune=True has no effect"):
        net.compile("plain", exhaustive_tune=True)
    value = np.array([[-1, 2, -3], [4, -5, 6]], np.float32)
    assert {k.backend for k in net.kernels()} == {"plain"}
    np.testing.assert_array_equal(np.asarray(net.run({"x": value})[0]), np.maximum(value, 0))
    again = migraphx.load_buffer(migraphx.save_buffer(net))
    np.testing.assert_array_equal(np.asarray(again.run({"x": value})[0]), np.maximum(value, 0))


def test_the_driver_has_a_flag_for_each_registered_target(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    net = migraphx.program()
    mm = net.get_main_module()
    x = mm.add_parameter("x", migraphx.shape(type="float_type", lens=[2, 3]))
    mm.add_return([mm.add_instruction(migraphx.op("tanh"), [x])])
    migraphx.save(net, tmp_path / "net.mxr")
    assert drive("verify", tmp_path / "net.mxr", "--plain") == 0
    assert "passed successfully (plain" in capsys.readouterr().out
    assert drive("perf", tmp_path / "net.mxr", "--plain", "-n", "2") == 0
    assert drive("compile", tmp_path / "net.mxr", "--plain", "--binary", "-o", tmp_path / "plain.mxr") == 0
    assert drive("run", tmp_path / "plain.mxr") == 0
    assert migraphx.load(tmp_path / "plain.mxr").is_compiled()


def test_kernels_of_two_back_ends_have_symbols_of_their_own():
    (kernel,) = {k.name: k for k in _kernels("plain")}.values()
    (same,) = [k for k in _kernels("cpu") if k.name == kernel.name]
    assert kernel.symbol != same.symbol and kernel.identity()["backend"] == "plain"


def _kernels(name: str):
    program = Program()
    x = program.main.add_parameter("x", Shape(from_numpy(np.dtype("float32")), (4, 4)))
    program.main.add_return([program.main.add_instruction("relu", [x])])
    return compile_for(name, program).kernels()
