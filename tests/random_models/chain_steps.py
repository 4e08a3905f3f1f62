"""Generate random chains: operators, constants and inputs."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np
import onnx
from onnx import helper, numpy_helper

__all__ = ["Chain", "Step", "chain"]

Rng = np.random.Generator

CONSTANTS = {
    np.float32: [1e-30, 1e-38, 1e-15, 1e30, 1e15, 1e8, 12582912.0, 8388608.0, 1e-45, 1e-40, 3e38, 16777216.0],
    np.float16: [1e-4, 6e-5, 6e-8, 1e-3, 1e3, 300.0, 200.0, 2000.0, 1536.0, 1024.0, 6e4, 65504.0],
}
ORDINARY = [1.0, -1.0, 2.0, 0.5, 3.0, 0.1, 10.0, -0.3, 1.1, 100.0, 4.0, 0.25, 7.0]
ZEROS = [0.0, -0.0]
NOT_FINITE = [np.inf, -np.inf, np.nan]

UNARY = "Neg Abs Relu Reciprocal Sqrt Exp Log Sigmoid Neg Abs".split()
FUNCTIONS = frozenset({"Exp", "Log", "Sigmoid", "Pow"})
"""Operators whose kernels may differ from NumPy by a few units in the last place."""
BINARY = "Add Sub Mul Div Max Min Add Sub Mul Div".split()
SHAPES: dict[str, tuple[int, ...]] = {"vector": (24,), "rows": (6, 4), "image": (2, 4, 2, 3)}
PARTS = (1, 4)
"""Range of the number of motifs or single steps in a chain (the end is excluded)."""
MOTIFS = (
    "Mul Mul", "Mul Mul Mul", "Div Div", "Mul Div", "Add Add", "Add Sub", "Sub Add", "Add Mul", "Sub Mul",
    "Add Mul Add", "Sub Div", "Neg Mul", "Mul Neg", "Max Max", "Min Min", "Add Add Mul", "Sum Mul",
    "Sum Add Mul Add", "Sum Add Add", "Sum Sub Mul", "Mul Sum", "Div Sum Mul", "Sum Mul Mul", "Sum Add Mul Mul",
    "Sum BatchNormalization", "Sum Add BatchNormalization", "Mul Sum Add", "Sqrt Reciprocal", "Exp Log",
    "Sum Neg Mul", "Mul Mul Sum Sub Div",
)  # fmt: skip
"""Sequences of operators that rules match, in data-flow order; Sum stands for a contraction."""


@dataclass(frozen=True)
class Step:
    """An operator of a chain.

    Attributes:
        op: its ONNX name.
        inputs: names of values and constants.
        output: the name of its result.
    """

    op: str
    inputs: tuple[str, ...]
    output: str


@dataclass
class Chain:
    """A model, its inputs, and what it computes.

    Attributes:
        results: names of its outputs.
        constants: by name.
    """

    dtype: Any
    steps: list[Step] = field(default_factory=list)
    constants: dict[str, np.ndarray] = field(default_factory=dict)
    feeds: dict[str, np.ndarray] = field(default_factory=dict)
    results: list[str] = field(default_factory=list)

    @property
    def has_functions(self) -> bool:
        """Return whether a step is in `FUNCTIONS`."""
        return any(s.op in FUNCTIONS for s in self.steps)

    @property
    def model(self) -> onnx.ModelProto:
        """Return the chain as a model of operator set 17."""
        kind = helper.np_dtype_to_tensor_dtype(np.dtype(self.dtype))
        nodes = [helper.make_node(s.op, s.inputs, [s.output]) for s in self.steps]
        inputs = [helper.make_tensor_value_info(n, kind, a.shape) for n, a in self.feeds.items()]
        outputs = [helper.make_tensor_value_info(n, kind, None) for n in self.results]
        given = [numpy_helper.from_array(a, n) for n, a in self.constants.items()]
        graph = helper.make_graph(nodes, "chain", inputs, outputs, given)
        return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9)


def chain(seed: int) -> Chain:
    """Return the chain of a seed: on a vector, on rows (with MatMul) or on an image (with Conv and batch norm)."""
    rng = np.random.default_rng([seed, 39])
    case = Chain(np.float16 if rng.random() < 0.35 else np.float32)
    kind = str(rng.choice(list(SHAPES)))
    shape = SHAPES[kind]
    special = rng.random() < 0.3
    values = [f"x{k}" for k in range(rng.integers(1, 3))]
    shapes = dict.fromkeys(values, shape)
    for _ in range(rng.integers(*PARTS)):
        for wanted in MOTIFS[int(rng.integers(len(MOTIFS)))].split() if rng.random() < 0.6 else [""]:
            step, lens = _step(case, rng, kind, shapes, f"v{len(case.steps)}", wanted)
            case.steps.append(step)
            shapes[step.output] = lens
    read = {i for s in case.steps for i in s.inputs}
    case.results = [s.output for s in case.steps if s.output not in read]
    if rng.random() < 0.2:
        case.results.append(str(rng.choice([s.output for s in case.steps])))
        case.results = list(dict.fromkeys(case.results))
    for name in values:
        case.feeds[name] = _values(case, rng, shape, special)
    return case


def _step(
    case: Chain, rng: Rng, kind: str, shapes: dict[str, tuple[int, ...]], output: str, wanted: str
) -> tuple[Step, tuple[int, ...]]:
    """Return a random step and the lengths of its result; ``wanted`` is its operator, "" for any."""
    x = list(shapes)[-1] if wanted or rng.random() < 0.85 else str(rng.choice(list(shapes)))
    lens = shapes[x]
    op = wanted or str(rng.choice([*UNARY, *BINARY, *BINARY, "Pow", "Sum", "Sum", "Sum", "BatchNormalization"]))
    if kind == "vector" and op in ("Sum", "BatchNormalization"):
        op = "Mul"
    if kind == "rows" and op == "BatchNormalization":
        op = "Mul"
    if op == "Sum":
        out = int(rng.integers(2, 6))
        shape = (lens[1], out) if kind == "rows" else (out, lens[1], 1, 1)
        weights = _constant(case, _weights(case, rng, shape))
        return Step("MatMul" if kind == "rows" else "Conv", (x, weights), output), (lens[0], out, *lens[2:])
    if op == "BatchNormalization":
        parts = [np.array([_number(case, rng) for _ in range(lens[1])]) for _ in range(4)]
        parts[3] = np.abs(parts[3])
        with np.errstate(over="ignore"):
            given = [_constant(case, p.astype(case.dtype)) for p in parts]
        return Step(op, (x, *given), output), lens
    if op in UNARY:
        return Step(op, (x,), output), lens
    if op == "Pow":
        exponent = _constant(case, np.array(rng.choice([2.0, 3.0, 1.0, 0.0, -1.0, 0.5, -0.5]), case.dtype))
        return Step(op, (x, exponent), output), lens
    alike = [name for name, s in shapes.items() if s == lens]
    if not wanted and rng.random() < 0.4 and len(alike) > 1:
        pair = [x, str(rng.choice(alike))]
    else:
        pair = [x, _constant(case, _operand(case, rng, kind, lens))]
    if rng.random() < (0.1 if wanted else 0.3):
        pair.reverse()
    return Step(op, tuple(pair), output), lens


def _number(case: Chain, rng: Rng) -> float:
    """Return a constant: often of extreme size, or so that an earlier constant cancels it."""
    dice = rng.random()
    if dice < 0.15 and case.constants:
        earlier = list(case.constants.values())[int(rng.integers(len(case.constants)))]
        value = float(earlier.ravel()[0])
        return float(rng.choice([value, -value, 1 / value if value else 0.0]))
    if dice < 0.4:
        return float(rng.choice(CONSTANTS[case.dtype])) * float(rng.choice([1, -1]))
    if dice < 0.45:
        return float(rng.choice(ZEROS))
    if dice < 0.46:
        return float(rng.choice(NOT_FINITE))
    if dice < 0.85:
        return float(rng.choice(ORDINARY))
    return float(rng.normal())


def _operand(case: Chain, rng: Rng, kind: str, lens: tuple[int, ...]) -> np.ndarray:
    """Return one number, or a number for each column or channel."""
    with np.errstate(over="ignore"):
        if kind == "vector" or rng.random() < 0.5:
            return np.array(_number(case, rng)).astype(case.dtype)
        axis = 1 if kind == "image" else rng.integers(len(lens))
        shape = [n if a == axis else 1 for a, n in enumerate(lens)]
        return np.array([_number(case, rng) for _ in range(lens[axis])]).astype(case.dtype).reshape(shape)


def _weights(case: Chain, rng: Rng, shape: tuple[int, ...]) -> np.ndarray:
    """Return weights of the same size, or of several sizes."""
    weights = rng.choice([rng.normal(size=shape), rng.choice([1.0, -1.0, 0.0, 0.5], shape)])
    if rng.random() < 0.4:
        weights = weights * rng.choice([1e-3, 1e3] if case.dtype is np.float16 else [1e-30, 1e-8, 1e8, 1e30])
    if rng.random() < 0.2:
        weights = np.where(rng.random(shape) < 0.3, rng.choice(CONSTANTS[case.dtype], shape), weights)
    with np.errstate(over="ignore"):
        return np.asarray(weights).astype(case.dtype)


def _constant(case: Chain, value: np.ndarray) -> str:
    name = f"c{len(case.constants)}"
    case.constants[name] = value
    return name


def _values(case: Chain, rng: Rng, shape: tuple[int, ...], special: bool) -> np.ndarray:
    """Draw an input: numbers of several sizes, and numbers beside the chain's constants.

    Args:
        special: draw NaN, infinities, zeros and subnormal numbers, too.
    """
    count = int(np.prod(shape))
    sizes = [1.0, 1.0, 10.0, 1e-3, 1e3] + ([] if case.dtype is np.float16 else [1e30, 1e-30, 1e8, 1e37])
    made = rng.normal(size=count) * rng.choice(sizes, count)
    beside = [float(v) for c in case.constants.values() for v in c.ravel()[:2] if np.isfinite(v)]
    with np.errstate(all="ignore"):
        for k in range(0, count, 3):
            if beside:
                near = case.dtype(float(rng.choice(beside)) * float(rng.choice([1, -1])))
                made[k] = float(near + np.spacing(near) * case.dtype(rng.integers(-3, 4))) + float(
                    rng.choice([0, 0, 0.5])
                )
        if special:
            odd = [np.nan, np.inf, -np.inf, 0.0, -0.0, float(np.finfo(case.dtype).smallest_subnormal)]
            places = rng.integers(0, count, count // 4)
            made[places] = rng.choice(odd, places.size)
        return made.astype(case.dtype).reshape(shape)
