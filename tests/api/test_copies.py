"""Copies of programs and operators, by ``copy`` and by ``pickle``."""

from __future__ import annotations

import copy
import multiprocessing
import pickle
from pathlib import Path

import numpy as np
import pytest

import mgx_numba
from mgx_numba.graph.mxr import load_program

X = np.linspace(-1, 1, 12, dtype=np.float32).reshape(3, 4)
W = np.linspace(-2, 1, 20, dtype=np.float32).reshape(4, 5)


def network(**options: object) -> mgx_numba.program:
    """Return a program of a product and an activation, compiled if options are given."""
    program = mgx_numba.program()
    main = program.get_main_module()
    x = main.add_parameter("x", mgx_numba.shape(type="float", lens=[3, 4]))
    product = main.add_instruction(mgx_numba.op("dot"), [x, main.add_literal(W)])
    main.add_return([main.add_instruction(mgx_numba.op("leaky_relu", alpha=0.25), [product])])
    if options:
        program.compile(mgx_numba.get_target("cpu"), **options)
    return program


def result(program: mgx_numba.program) -> np.ndarray:
    return np.array(program.run({"x": X})[0])


@pytest.mark.parametrize("how", [copy.copy, copy.deepcopy, lambda p: pickle.loads(pickle.dumps(p))])
def test_copies_are_programs_of_their_own(how):
    plain = network()
    changed = how(plain)
    assert changed == plain and not changed.is_compiled()
    mgx_numba.quantize_fp16(changed)
    assert changed != plain

    compiled = network(fast_math=False, num_threads=1)
    other = how(compiled)
    assert other.compile_options == compiled.compile_options and other.compile_target == compiled.compile_target
    np.testing.assert_array_equal(result(other), result(compiled))
    assert how({"model": compiled})["model"].is_compiled()


def test_a_compiled_program_could_not_be_sent_to_another_process():
    program = network(num_threads=1)
    with multiprocessing.get_context("spawn").Pool(1) as pool:
        np.testing.assert_array_equal(pool.apply(result, (program,)), result(program))


def test_operators_whose_classes_are_made_could_not_be_pickled():
    kernel = mgx_numba.op("convolution", padding=[1, 1], stride=[2, 2], dilation=[1, 1], group=3)
    nested = mgx_numba.op("pooling", mode=mgx_numba.op.pooling_mode.max, lengths=[2, 2])
    for op in (mgx_numba.op("add"), mgx_numba.op("sqdiff"), mgx_numba.op("clip"), kernel, nested):
        assert pickle.loads(pickle.dumps(op)) == op == copy.deepcopy(op)


def test_a_copied_module_has_inputs_of_its_own():
    main = network().get_main_module()
    other = copy.deepcopy(main)
    assert other == main
    other.add_parameter("y", mgx_numba.shape(type="float", lens=[2]))
    assert other != main


def test_the_precision_of_products_was_lost_in_a_file(tmp_path: Path):
    path = tmp_path / "model.mxr"
    network(float32_matmul_precision="highest", num_threads=1).save(path)
    assert mgx_numba.load(path).compile_options.float32_matmul_precision == "highest"
    assert mgx_numba.load_buffer(path.read_bytes()).compile_options.float32_matmul_precision == "highest"
    network(num_threads=1).save(path)
    assert "float32_matmul_precision" not in load_program(path)[1]["compiled"]
