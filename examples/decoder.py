"""Generate text with a key/value cache: `python examples/decoder.py [TEXT] [COUNT]`.

The decoder is one attention layer whose weights are set by hand, so that it needs no training: an induction head, which
looks for the places where what was just read came before, and goes on with what followed there. Like a real decoder it
takes the new tokens and the cache (``past_keys``, ``past_values``) and gives the next token and the longer cache. The
cache's length is a dimension that the model leaves open: the program is compiled once, and no length compiles anything.
"""

from __future__ import annotations

import sys

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

import mgx_numba as migraphx

SYMBOLS = "abcdefghijklmnopqrstuvwxyz .,"
SHARPNESS = 8.0  # of attention: of two symbols, one that matches outweighs a thousand that do not


def decoder(size: int) -> onnx.ModelProto:
    """``tokens`` and ``before`` [1, s] (each token's predecessor) with a cache of p tokens to ``next`` [1, s] and the
    cache of p + s."""
    constants = {
        "embedding": np.eye(size, dtype=np.float32),
        "scale": np.float32(SHARPNESS),
        "one": np.int64(1),
        "zero": np.int64(0),
        "axis1": np.array([1]),
        "minus": np.float32(-1e9),
    }
    make = helper.make_node
    nodes = [
        make("Gather", ["embedding", "tokens"], ["values"]),
        make("Gather", ["embedding", "before"], ["keys"]),
        make("Concat", ["past_keys", "keys"], ["present_keys"], axis=1),
        make("Concat", ["past_values", "values"], ["present_values"], axis=1),
        make("Transpose", ["present_keys"], ["turned"], perm=[0, 2, 1]),
        make("MatMul", ["values", "turned"], ["matches"]),  # queries are the tokens themselves
        make("Mul", ["matches", "scale"], ["sharp"]),
        # A token sees those before it and itself: position of a key <= position of the query.
        make("Shape", ["past_keys"], ["p"], start=1, end=2),
        make("Shape", ["present_keys"], ["t"], start=1, end=2),
        make("Squeeze", ["p"], ["p0"]),
        make("Squeeze", ["t"], ["t0"]),
        make("Range", ["p0", "t0", "one"], ["rows"]),
        make("Range", ["zero", "t0", "one"], ["columns"]),
        make("Unsqueeze", ["rows", "axis1"], ["rows1"]),
        make("LessOrEqual", ["columns", "rows1"], ["seen"]),
        make("Where", ["seen", "sharp", "minus"], ["masked"]),
        make("Softmax", ["masked"], ["weights"], axis=-1),
        make("MatMul", ["weights", "present_values"], ["logits"]),
        make("ArgMax", ["logits"], ["next"], axis=-1, keepdims=0),
    ]
    info, f, i = helper.make_tensor_value_info, TensorProto.FLOAT, TensorProto.INT64
    graph = helper.make_graph(
        nodes,
        "decoder",
        [
            info("tokens", i, [1, "s"]),
            info("before", i, [1, "s"]),
            info("past_keys", f, [1, "p", size]),
            info("past_values", f, [1, "p", size]),
        ],
        [
            info("next", i, [1, "s"]),
            info("present_keys", f, [1, "t", size]),
            info("present_values", f, [1, "t", size]),
        ],
        [numpy_helper.from_array(np.asarray(value), name) for name, value in constants.items()],
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=10)


def generate(program: migraphx.program, prompt: list[int], count: int, size: int) -> list[int]:
    """``count`` tokens after a prompt: the whole prompt in one run, then a token at a time."""
    keys = values = np.zeros((1, 0, size), np.float32)
    tokens, text = prompt, list(prompt)
    last = tokens[0]
    for _ in range(count):
        before = [last, *tokens[:-1]]
        feed = {"tokens": np.array([tokens]), "before": np.array([before]), "past_keys": keys, "past_values": values}
        following, keys, values = program.run(feed)
        last, tokens = tokens[-1], [int(np.asarray(following)[0, -1])]
        text += tokens
    return text[len(prompt) :]


def main() -> None:
    text = sys.argv[1] if len(sys.argv) > 1 else "jumping, ju"
    count = int(sys.argv[2]) if len(sys.argv) > 2 else 16
    unknown = sorted(set(text) - set(SYMBOLS))
    if not text or unknown:
        raise SystemExit(f"the text has {unknown or 'no symbols'}, expected some of {SYMBOLS!r}")
    size = len(SYMBOLS)
    program = migraphx.parse_onnx(decoder(size)).compile(migraphx.get_target("cpu"))
    prompt = [SYMBOLS.index(symbol) for symbol in text]
    generated = generate(program, prompt, count, size)
    # The same without a cache: everything is read again for each token.
    again = list(prompt)
    for _ in range(count):
        again += generate(program, again, 1, size)
    assert again[len(prompt) :] == generated, "the cache changes what is generated"
    print(text + "".join(SYMBOLS[k] for k in generated))


if __name__ == "__main__":
    main()
