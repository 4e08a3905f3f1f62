"""The log of refused rewrites, fusions and kernels can be read and printed."""

from __future__ import annotations

import gc
import io
import weakref

import numpy as np
import pytest

import mgx_numba as migraphx
from mgx_numba.driver.compare import Tolerance
from mgx_numba.driver.verifying import check_steps
from mgx_numba.graph.passes.base import make_pass, run_passes
from mgx_numba.graph.program import Program
from mgx_numba.graph.rewrite_log import RewriteLog
from mgx_numba.targets.options import TargetOptions
from mgx_numba.targets.registry import compile_for

from .support import Graph


def refusals(program: Program, name: str) -> list[str]:
    """Run a pass and return its refusals, as operator names with reasons."""
    run_passes(program, [make_pass(name)], validate=True)
    return [f"{r.op.name}: {r.reason}" for r in program.log.refusals(name)]


def test_a_contraction_says_what_ends_its_epilogue() -> None:
    g = Graph()
    dot = g.op("dot", g.param("x", [4, 4]), g.param("w", [4, 4]))
    total = g.op("reduce_sum", g.op("relu", dot), axes=(1,))
    assert refusals(g.ret(total), "fuse_contraction") == ["reduce_sum: it is no pointwise operation"]
    g = Graph()
    dot = g.op("dot", g.param("x", [4, 4], "half"), g.param("w", [4, 4], "half"))
    (reason,) = refusals(g.ret(g.op("relu", dot)), "fuse_contraction")
    assert reason == "dot: epilogues are computed in float_type, double_type and of 8-bit integers, not in half_type"
    g = Graph()
    dot = g.op("dot", g.param("x", [4, 4]), g.param("w", [4, 4]))
    found = refusals(g.ret(g.op("relu", dot), g.op("tanh", dot)), "fuse_contraction")
    assert [f.split(":")[0] for f in found] == ["relu", "tanh"] and all("used outside" in f for f in found)


def test_a_prologue_says_why_it_is_none() -> None:
    g = Graph()
    x = g.op("relu", g.param("x", [1, 3, 6, 6]))
    found = refusals(g.ret(g.op("convolution", x, g.random(4, 3, 3, 3))), "fuse_contraction")
    assert found == ["convolution: no prologue: the convolution is not 1x1 with stride 1"]
    g = Graph()
    narrow = g.op("convert", g.param("x", [1, 3, 6, 6]), target_type="fp8e4m3fn_type")
    wide = g.op("convert", narrow, target_type="float_type")
    found = refusals(g.ret(g.op("convolution", wide, g.random(4, 3, 1, 1))), "fuse_contraction")
    assert found == ["convolution: no prologue: its operations round to float8 and back"]


def test_a_reduction_says_what_stays_outside() -> None:
    g = Graph()
    x = g.param("x", [4, 6])
    rows = g.op("reduce_sum", g.op("exp", x), axes=(1,))
    columns = g.op("reduce_sum", g.op("mul", x, g.spread(rows, 4, 6)), axes=(0,))
    assert "reduce_sum: it reduces other axes than [1]" in refusals(g.ret(columns), "fuse_reduce")
    g = Graph()
    empty = g.op("reduce_sum", g.param("x", [4, 0]), axes=(1,))
    assert refusals(g.ret(empty), "fuse_reduce") == ["reduce_sum: there are no elements"]


def test_a_pointwise_operation_says_why_it_joins_no_cluster() -> None:
    g = Graph()
    x = g.param("x", [4])
    first = g.op("exp", x)
    around = g.op("topk", first, k=4, axis=0)
    again = g.op("add", g.op("neg", first), g.op("get_tuple_elem", around, index=0))
    found = refusals(g.ret(again), "fuse_pointwise")
    assert "exp: a path leads from it out of its user's cluster and back" in found


def test_what_is_applied_after_all_is_no_refusal() -> None:
    log, program = RewriteLog(), Graph()
    ins = program.op("relu", program.param("x", [3]))
    log.refuse("rule", ins, "not yet")
    log.refuse("other", ins, "never")
    log.apply("rule", ins, forget=True)
    log.close()
    log.refuse("rule", ins, "as if it were another instruction")
    assert [str(r).split(": ")[-1] for r in log.refusals()] == ["never", "as if it were another instruction"]
    assert log.applied == {"rule": 1}


def test_a_log_holds_no_values() -> None:
    g = Graph()
    table = np.ones((4, 4), np.float16)
    program = g.ret(g.op("relu", g.op("dot", g.param("x", [4, 4], "half"), g.lit(table, np.float16))))
    run_passes(program, ["fuse_contraction"])
    log, dot = program.log, weakref.ref(program.main)
    del g, program
    gc.collect()
    assert dot() is None and log.refusals("fuse_contraction")


def test_logs_of_passes_come_to_the_program_and_not_to_its_copies() -> None:
    g = Graph()
    x = g.param("x", [2, 3])
    total = g.op("add", x, g.scalar(1.0, x))
    program = g.ret(g.op("mul", total, g.scalar(2.0, x)), total)
    step = make_pass("optimize_module")
    run_passes(program, [step])
    assert (
        [r.rule for r in program.log.refusals("mul_add")]
        == ["mul_add"]
        == [r.rule for r in step.log.refusals("mul_add")]
    )
    assert not program.clone().log.refusals()
    other = g.program.clone()
    run_passes(other, [step])
    assert len(program.log.refusals("mul_add")) == 1 == len(other.log.refusals("mul_add"))


def host_model() -> Program:
    """An integer ``lrn``, for which there is no kernel, and an operator without any rule."""
    g = Graph()
    x = g.param("x", [1, 4, 3, 3], "int32")
    return g.ret(g.op("lrn", x, size=3), g.op("relu", x))


def test_host_steps_say_which_rule_refused_and_why(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture
) -> None:
    monkeypatch.setenv("MIGRAPHX_TRACE_MATCHES", "1")
    compiled = compile_for("cpu", host_model(), TargetOptions(num_threads=1))
    reason = "kernels normalise floats, not int32_type"
    (refusal,) = compiled.rewrite_log().refusals("lower_lrn")
    assert refusal.reason == reason and refusal.op.name == "lrn"
    assert str(refusal) in capsys.readouterr().out
    reason = f"lower_lrn: {reason}"
    assert list(compiled.fallback_reasons().values()) == [reason]
    seen = []
    values = {"x": np.arange(36, dtype=np.int32).reshape(1, 4, 3, 3)}
    compiled.observe(values, seen.append)
    assert {s.label: s.reason for s in seen if s.reason} == {"ref::lrn": reason}
    assert any(c.what.endswith(f"(on the host: {reason})") for c in check_steps(compiled, values, Tolerance()))
    trace = io.StringIO()
    compiled.trace(values, 1, trace)
    assert f"[ref::lrn] (on the host: {reason})" in trace.getvalue()


def test_a_compiled_program_is_printed_with_reasons_and_compared_without() -> None:
    model = migraphx.program.wrap(host_model())
    twin = migraphx.program.wrap(host_model())
    assert "on the host" not in str(model)
    model.compile("cpu", num_threads=1)
    twin.compile("cpu", num_threads=1)
    (line,) = [line for line in str(model).splitlines() if "lrn" in line]
    assert line.endswith("# on the host: lower_lrn: kernels normalise floats, not int32_type")
    assert model == twin and model.rewrite_log().refusals("lower_lrn")


def test_instructions_after_a_host_step_say_so() -> None:
    g = Graph()
    found = g.op("get_tuple_elem", g.op("unique", g.param("x", [6, 2]), axis=0), index=0)
    compiled = compile_for("cpu", g.ret(g.op("neg", found)), TargetOptions(num_threads=1))
    reasons = [r.reason for r in compiled.rewrite_log().refusals() if r.rule.startswith("lower")]
    assert reasons and all("run time" in r or "host" in r or "no lowering rule" in r for r in reasons)
    assert all(compiled.fallback_reasons().values())


def test_refusals_in_submodules_and_other_lengths_are_in_the_program_s_log() -> None:
    g = Graph()
    condition = g.param("c", [1], "bool")
    x = g.param("x", [1, 4, 3, 3], "int32")
    branches = [g.program.create_module(n) for n in ("yes", "no")]
    branches[0].add_return([branches[0].add_instruction("lrn", [x], size=3)])
    branches[1].add_return([branches[1].add_instruction("neg", [x])])
    chosen = g.module.add_instruction("if", [condition], branches)
    compiled = compile_for("cpu", g.ret(g.op("get_tuple_elem", chosen, index=0)), TargetOptions(num_threads=1))
    assert compiled.rewrite_log().refusals("lower_lrn") and compiled.rewrite_log().refusals("lower_control")
