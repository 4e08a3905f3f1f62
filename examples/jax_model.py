"""Run a function of JAX: `python examples/jax_model.py` (needs jax and jax2onnx).

It converts a perceptron with random weights, of any number of samples, by jax2onnx, and compares the results with
JAX's own for several numbers of samples.
"""

from __future__ import annotations

import itertools

import jax
import jax.numpy as jnp
import numpy as np
from jax2onnx import to_onnx

import mgx_numba as migraphx

SIZES = (16, 64, 64, 10)


def main() -> None:
    keys = jax.random.split(jax.random.PRNGKey(0), len(SIZES) - 1)
    weights = [jax.random.normal(key, pair) / pair[0] ** 0.5 for key, pair in zip(keys, itertools.pairwise(SIZES))]

    def model(x: jax.Array) -> jax.Array:
        for weight in weights[:-1]:
            x = jax.nn.gelu(x @ weight)
        return jax.nn.softmax(x @ weights[-1])

    converted = to_onnx(model, inputs=[("B", SIZES[0])])
    program = migraphx.parse_onnx_buffer(converted.SerializeToString())
    program.compile(migraphx.get_target("cpu"))
    (name,) = program.get_parameter_names()
    worst = 0.0
    for count in (1, 3, 32):
        x = np.random.default_rng(count).normal(size=(count, SIZES[0])).astype(np.float32)
        (found,) = program.run({name: x})
        worst = max(worst, float(jnp.abs(model(x) - found).max()))
    print(f"largest difference from JAX: {worst:.0e}")


if __name__ == "__main__":
    main()
