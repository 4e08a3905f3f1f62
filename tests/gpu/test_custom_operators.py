"""Users' operators on the gpu target: expressions in kernels, functions on the host."""

from __future__ import annotations

import numpy as np
import pytest

import mgx_numba

from ..values import normal
from .programs import compiled, interpreter


@pytest.mark.parametrize("lens", [(3, 5), (0, 4), (17,)])
def test_expressions_are_fused_and_functions_run_on_the_host(lens: tuple[int, ...]) -> None:
    mgx_numba.register_custom_op("test.gpu", "Swish", scalar=lambda x, *, beta=1.0: x / (1 + np.exp(-beta * x)))
    mgx_numba.register_custom_op("test.gpu", "Twice", compute=lambda x: x * 2, compute_shape=lambda x: x)
    try:
        built = mgx_numba.program()
        main = built.get_main_module()
        x = main.add_parameter("x", mgx_numba.shape(type="float", lens=list(lens)))
        swish = main.add_instruction(mgx_numba.op("test.gpu::Swish", beta=2), [x])
        twice = main.add_instruction(mgx_numba.op("test.gpu::Twice"), [swish])
        main.add_return([main.add_instruction(mgx_numba.op("add"), [twice, x])])
        program = compiled(built.portable, interpreter())
        feed = normal(*lens)
        (found,) = program.run({"x": feed})
        np.testing.assert_allclose(found, 2 * (feed / (1 + np.exp(-2 * feed))) + feed, rtol=1e-5, atol=1e-6)
        assert "test.gpu::Twice" in str(program.fallback_reasons())
        assert any("Swish" in kernel.name for kernel in program.kernels()) or not feed.size
    finally:
        mgx_numba.unregister_custom_op("test.gpu", "Swish")
        mgx_numba.unregister_custom_op("test.gpu", "Twice")
