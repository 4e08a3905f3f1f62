"""Statements of kernels: native code against Python, which runs the same text."""

from __future__ import annotations

import ast
import random
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from mgx_numba.codegen.cpu.kernel import cpu_kernel
from mgx_numba.codegen.cpu.toolchain.compiler import compile_object, inspect
from mgx_numba.codegen.cpu.toolchain.loader import load
from mgx_numba.codegen.gpu.architecture import ARCHITECTURES
from mgx_numba.codegen.gpu.kernel import gpu_kernel
from mgx_numba.codegen.gpu.toolchain.compiler import assembly
from mgx_numba.codegen.toolchain.assignment import Unassigned, check_assignments
from mgx_numba.codegen.toolchain.dead_ends import dead_end
from mgx_numba.errors import CompileError
from mgx_numba.runtime.host.native import NativeKernel

WORDS = 24
_INTEGERS, _FLOATS, _EITHER = ("a", "b", "c", "d"), ("x", "y"), ("v", "w")
_PLACES = ("args[m + n + 1]", "args[1 + m + n]", "args[n + (m + 2)]", "args[7 - m]", "args[m * 2 + 1]")
"""Words of which loops may change the number, or a part of it: ``m`` and ``n`` are 0 to 3."""
_PYTHON = {
    "pointer_float64": lambda args, slot: args[slot],
    "store_scalar": lambda place, index, value: place.__setitem__(index, value),
    "imin": min,
    "imax": max,
}


def cpu_compile(lines: list[str]) -> object:
    """Compile a kernel with the body ``lines`` for the CPU."""
    text = "def kernel(args, begin, end):\n" + "".join(f"    {line}\n" for line in lines)
    return compile_object(cpu_kernel("bad_kernel", text))


def gpu_compile(lines: list[str]) -> object:
    """Compile a kernel with the body ``lines`` for a GPU."""
    return assembly(gpu_kernel("bad_kernel", lines, 32, 3), ARCHITECTURES["sm_90a"])


def native(text: str, words: np.ndarray, begin: int, end: int) -> np.ndarray:
    """Run a kernel and return its words; the last half holds the float64 values stored through slot 0."""
    found = words.copy()
    found[0] = found.ctypes.data + found.nbytes // 2
    (address,) = load([cpu_kernel("some_kernel", text)])
    NativeKernel(address)(found.ctypes.data, begin, end)
    return found[1:]


def interpreted(text: str, words: np.ndarray, begin: int, end: int) -> np.ndarray:
    """Run the same kernel by Python."""
    found: list[Any] = words.tolist()
    found[0] = floats = words[WORDS // 2 :].view(np.float64).tolist()
    names = dict(_PYTHON)
    exec(text, names)
    names["kernel"](found, begin, end)
    return np.array([*found[1 : WORDS // 2], *np.array(floats, np.float64).view(np.int64)], np.int64)


class _Writer:
    """Writes random statements over variables that are integers, floats, and either by turns."""

    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)
        self.counters = 0

    def pick(self, *choices: Any) -> Any:
        return self.random.choice(choices)

    def integer(self, depth: int = 2) -> str:
        if depth == 0 or self.random.random() < 0.3:
            return self.pick(
                *_INTEGERS,
                str(self.random.randint(-9, 9)),
                f"args[{self.random.randint(1, 8)}]",
                "end",
                self.pick(*_PLACES),
            )
        one, other = self.integer(depth - 1), self.integer(depth - 1)
        form = self.pick(
            "({} + {})", "({} - {})", "({} * {} & 1023)", "({} ^ {})", "imin({}, {})", "imax({}, {})", "({} % 7 + {})",
            "({} // 3 - {})", "({} if {} > 1 else 5)", "(-{} | {})", "({} << ({} & 3) & 4095)", "({} >> ({} & 3))",
        )  # fmt: skip
        return form.format(one, other)

    def number(self) -> str:
        form = self.pick("({} + {})", "({} - {})", "({} * {})", "({1} if " + self.condition() + " else {0})")
        return form.format(self.pick(*_FLOATS, *_EITHER, "0.5", "1.25"), self.pick(*_FLOATS, *_EITHER, "2", "-1.5"))

    def condition(self, depth: int = 2) -> str:
        if depth == 0 or self.random.random() < 0.4:
            sign = self.pick("<", "<=", ">", ">=", "==", "!=")
            return f"{self.pick(*_INTEGERS, *_FLOATS, *_EITHER)} {sign} {self.pick(*_INTEGERS, '3', '0')}"
        one, other = self.condition(depth - 1), self.condition(depth - 1)
        return self.pick("({} and {})", "({} or {})", "not ({} and {})").format(one, other)

    def body(self, depth: int, looped: bool) -> list[str]:
        lines = []
        for _ in range(self.random.randint(1, 4)):
            lines += self.statement(depth, looped)
        return lines

    def nested(self, head: str, depth: int, looped: bool, first: tuple[str, ...] = ()) -> list[str]:
        return [head, *("    " + line for line in [*first, *self.body(depth - 1, looped)])]

    def statement(self, depth: int, looped: bool) -> list[str]:
        kind = self.random.randrange(12 if depth else 6)
        if kind == 0:
            return [f"{self.pick(*_INTEGERS)} {self.pick('=', '+=', '-=')} {self.integer()}"]
        if kind == 1:
            return [f"{self.pick(*_FLOATS)} = 0.25 * {self.number()}"]
        if kind == 2:
            return [f"{self.pick(*_EITHER)} = {self.pick(self.integer(), self.number(), '3', '0.75')}"]
        if kind == 3:
            place = self.pick(f"args[{self.random.randint(1, 8)}]", *_PLACES)
            changed = [f"{self.pick('m', 'n')} = {self.integer()} & 3"] if self.random.random() < 0.3 else []
            return [f"{place} {self.pick('=', '+=')} {self.integer()}", *changed]
        if kind == 4:
            return [f"store_scalar(floats, {self.random.randint(0, 8)}, {self.pick(*_FLOATS, *_EITHER)} * 1.0)"]
        if kind == 5:
            one, other = self.random.sample(_INTEGERS, 2)
            return [f"{one}, {other} = {other}, {self.integer()}", f"c = d = {self.integer(1)}"]
        if kind < 9:
            lines = self.nested(f"if {self.condition()}:", depth, looped)
            if kind > 6:
                lines += self.nested(f"elif {self.condition()}:", depth, looped)
            return [*lines, *self.nested("else:", depth, looped)] if kind > 7 else lines
        if kind == 9 and looped:
            return [f"if {self.condition()}:", "    " + self.pick("break", "continue")]
        self.counters += 1
        count = f"k{self.counters}"
        if kind == 10:
            most = self.random.randint(1, 4)
            head = self.pick(f"while {count} < {most} and {self.condition()}:", f"while {count} < {most}:")
            return [f"{count} = 0", *self.nested(head, depth, True, (f"{count} += 1",))]
        bounds = self.pick(
            "imin({}, 5)",
            "imin({}, 3), 4",
            "{} & 7, -3, -2",
            "-2, imin({}, 6), ({} & 1) + 1",
            "3, 3, 2",
            "3",
            "4, -2, -2",
        )
        value = self.integer(1)
        used = f"{self.pick(*_INTEGERS)} += {count}"
        return self.nested(f"for {count} in range({bounds.format(value, value)}):", depth, True, (used,))

    def text(self) -> str:
        head = [
            "floats = pointer_float64(args, 0)",
            "a = begin",
            "b = end",
            "c = 1",
            "d = args[2]",
            "m = begin & 3",
            "n = end & 3",
            "x = 0.5",
            "y = 2.0",
        ]
        tail = [f"args[{9 + k}] = {name}" for k, name in enumerate(("a", "b"))]
        tail += [f"store_scalar(floats, {k}, {name} * 1.0)" for k, name in enumerate((*_FLOATS, *_EITHER))]
        middle = [line for _ in range(4) for line in self.statement(3, False)]
        lines = [*head, "v = 3", "w = 1.5", *middle, *tail]
        return "def kernel(args, begin, end):\n" + "".join(f"    {line}\n" for line in lines)


@pytest.mark.parametrize("seed", range(40))
def test_random_statements_do_what_they_do_in_python(seed: int) -> None:
    text = _Writer(seed).text()
    words = np.random.default_rng(seed).integers(-5, 9, WORDS)
    words[WORDS // 2 :] = np.linspace(-2, 2, WORDS // 2).view(np.int64)
    np.testing.assert_array_equal(native(text, words, 2, 5), interpreted(text, words, 2, 5), text)


@pytest.mark.parametrize("step", [-7, -2, -1, 1, 2, 7])
@pytest.mark.parametrize("written", [True, False])
def test_ranges_are_those_of_python(step: int, written: bool) -> None:
    shown = str(step) if written else "args[3]"
    text = (
        f"def kernel(args, begin, end):\n    for k in range(begin, end, {shown}):\n        args[1] = args[1] * 7 + k\n"
    )
    words = np.zeros(WORDS, np.int64)
    words[3] = step
    for begin, end in ((0, 0), (-3, 5), (5, -3), (2, 3), (3, 2), (0, 14), (14, 0)):
        assert native(text, words, begin, end)[0] == interpreted(text, words, begin, end)[0]


def test_range_of_step_zero_is_empty() -> None:
    text = "def kernel(args, begin, end):\n    for k in range(begin, end, args[3]):\n        args[1] += 1\n"
    for begin, end in ((0, 4), (4, 0), (0, 0)):
        assert native(text, np.zeros(WORDS, np.int64), begin, end)[0] == 0


def function_of(*lines: str) -> ast.FunctionDef:
    text = "def kernel(args, begin, end):\n" + "".join(f"    {line}\n" for line in lines)
    (function,) = ast.parse(text).body
    assert isinstance(function, ast.FunctionDef)
    return function


@pytest.mark.parametrize(
    ("lines", "says"),
    [
        (["if begin > 100:", "    x = 5", "args[1] = x"], "line 4: variable x .* if `begin > 100` of line 2 is false"),
        (["if begin > 100:", "    pass", "else:", "    x = 5", "args[1] = x"], "x .* if `begin > 100` .* is true"),
        (["if begin:", "    x = 1", "elif end:", "    x = 2", "args[1] = x"], "x .* if `end` of line 4 is false"),
        (["if begin:", "    x = 1", "if begin:", "    args[1] = x"], "line 5: variable x .* if `begin` of line 2 is"),
        (
            ["while begin < end:", "    x = begin", "    begin += 1", "args[1] = x"],
            "x .* loop of line 2 runs zero times",
        ),
        (["while begin < end:", "    args[1] = x", "    x = 1"], "line 3: variable x .* before its first assignment"),
        (["for i in range(end):", "    x = i", "args[1] = x"], "line 4: variable x .* loop of line 2 runs zero times"),
        (["for i in range(end):", "    pass", "args[1] = i"], "variable i .* loop of line 2 runs zero times"),
        (["for i in range(3, 3):", "    x = i", "args[1] = x"], "variable x .* runs zero times"),
        (["for i in range(3):", "    if begin:", "        break", "    x = i", "args[1] = x"], "x .* left by break"),
        (["for i in range(3):", "    if end:", "        continue", "    x = i", "args[1] = x"], "x .* has a continue"),
        (
            ["while True:", "    if begin:", "        break", "    x = 1", "    begin += x", "args[1] = x"],
            "x .* by break",
        ),
        (["for i in range(end):", "    if i > 0:", "        args[1] = x", "    x = i"], "line 4: variable x"),
        (["x += 1"], "line 2: variable x .* before its first assignment"),
        (["if begin:", "    x = 1", "x -= 1"], "line 4: variable x"),
        (["if begin:", "    x, y = 1, 2", "args[y] = 1"], "line 4: variable y"),
        (["args[1] = 1 if begin else x", "x = 2"], "line 2: variable x"),
    ],
)
def test_a_variable_without_a_value_on_some_path_is_refused(lines: list[str], says: str) -> None:
    """LLVM treated the variable as undefined and compiled a wrong kernel without a message."""
    with pytest.raises(Unassigned, match=says):
        check_assignments(function_of(*lines))


@pytest.mark.parametrize(
    "lines",
    [
        ["if begin:", "    x = 1", "else:", "    x = 2", "args[1] = x"],
        ["if begin:", "    return", "else:", "    x = 2", "args[1] = x"],
        ["for i in range(2):", "    x = i", "args[i] = x"],
        [
            "for i in range(3, -1, -1):",
            "    if begin:",
            "        x = 2",
            "        continue",
            "    x = i",
            "args[1] = x",
        ],
        ["while True:", "    x = begin", "    if x > 3:", "        break", "    begin += 1", "args[1] = x"],
        ["for i in range(end):", "    if i > begin:", "        continue", "    x = i", "    args[1] = x"],
        ["if 1:", "    x = 2", "args[1] = x"],
    ],
)
def test_a_variable_with_a_value_on_every_path_is_taken(lines: list[str]) -> None:
    check_assignments(function_of(*lines))


def test_a_text_that_is_taken_never_reads_an_unassigned_variable_in_python() -> None:
    taken = refused = 0
    for seed in range(300):
        text = _Writer(seed).text()
        left_out = random.Random(seed).choice(("    c = 1\n", "    x = 0.5\n", "    v = 3\n", "    w = 1.5\n"))
        text = text.replace(left_out, "", 1) + left_out
        words = np.random.default_rng(seed).integers(-5, 9, WORDS)
        try:
            check_assignments(function_of(*(line[4:] for line in text.splitlines()[1:])))
        except Unassigned:
            refused += 1
            continue
        taken += 1
        interpreted(text, words, 2, 5)  # which would raise UnboundLocalError
    assert taken > 5 and refused > 5


@pytest.mark.parametrize("compiled", [cpu_compile, gpu_compile])
def test_compiling_names_the_kernel_and_the_variable(compiled: Callable[[list[str]], object]) -> None:
    with pytest.raises(CompileError, match="kernel bad_kernel: .*variable x is read here"):
        compiled(["if args[1] > 100:", "    x = 5", "args[2] = x"])


def test_what_follows_a_return_or_an_endless_loop_is_not_written() -> None:
    lines = [
        "def kernel(args, begin, end):",
        "    while True:",
        "        if begin > 3:",
        "            args[1] = begin",
        "            break",
        "        begin += 1",
        "    while True:",
        "        if begin > 1:",
        "            return",
        "    args[2] = unknown",
        "",
    ]
    text = "\n".join(lines)
    assert native(text, np.zeros(WORDS, np.int64), 0, 0)[:2].tolist() == [4, 0]


def test_constants_of_the_text_are_literals() -> None:
    text = "LANES = 4\ndef kernel(args, begin, end):\n    args[1] = reduce_add(const_int64(LANES, LANES))\n"
    assert native(text, np.zeros(WORDS, np.int64), 0, 0)[0] == 16


def test_variables_of_one_place_are_no_memory() -> None:
    lines = "x = begin + 1\n    for k in range(x):\n        y = x * k\n        args[k] = y"
    text = f"def kernel(args, begin, end):\n    {lines}\n"
    allocated = inspect(cpu_kernel("k", text)).lowered.count("alloca i64")
    assert allocated == 0  # numbers of a range are SSA values, too


@pytest.mark.parametrize(
    ("lines", "says"),
    [
        (
            "if begin:\n        y = 1.0\n    else:\n        y = const_float32(0, 8)\n    args[1] = y",
            "y has no value here",
        ),
        ("args[1] = y", "line 2: y is no variable and no number"),
        ("args[1] = 1 if begin < 2 < end else 0", "compares two values at a time"),
        ("args[1] = imin(a=begin, b=end)", "name no parameters"),
        ("a, b = begin", "a tuple is assigned from a tuple"),
        ("a, b = begin, end, 1", "a tuple is assigned from a tuple"),
        ("for k in args:\n        pass", "go over a range"),
        ("for k in range(3):\n        pass\n    else:\n        pass", "no else"),
        ("a = store_scalar(args, 1, 2)", "a is given the result of what has none"),
        ("return 3", "returns Literal.* expected none"),
        ("args.x = 3", "cannot assign to Attribute"),
        ("a = [begin]", "cannot contain List"),
        ("a = begin ** 2", "cannot contain Pow"),
        ("a = begin is end", "cannot contain Is"),
        ("a = None", "cannot contain Constant"),
        ("a = begin[1]", "line 2: .*getitem"),
        ("a = begin + const_float32(0, 8)", r"line 2: .*\+"),
        ("a = 1 if begin else const_float32(0, 8)", "on one way and"),
        ("a = 1 << 70", "line 2: .*[Ii]nt"),
    ],
)
def test_refusals_say_what_is_wrong_and_where(lines: str, says: str) -> None:
    with pytest.raises(CompileError, match=f"(?s){says}") as caught:
        compile_object(cpu_kernel("bad_kernel", f"def kernel(args, begin, end):\n    {lines}\n"))
    assert "line " in str(caught.value)


@pytest.mark.parametrize(
    ("line", "found"),
    [
        ("  unreachable", "line 2: unreachable"),
        ("  call void @llvm.trap()", "line 2: call void @llvm.trap()"),
        ("\ttrap;", "line 2: trap;"),
        ("@%p1 brkpt;", "line 2: @%p1 brkpt;"),
        ("  br label %unreachable_block", ""),
        ("; no trap here", ""),
    ],
)
def test_paths_that_end_without_a_return_are_found(line: str, found: str) -> None:
    assert dead_end(f"entry:\n{line}\n  ret void\n") == found


@pytest.mark.parametrize("compiled", [cpu_compile, gpu_compile])
def test_a_path_that_llvm_takes_for_unreachable_is_refused(
    compiled: Callable[[list[str]], object], monkeypatch: pytest.MonkeyPatch
) -> None:
    """On such a path a GPU would abort the launch, and a CPU would execute other code."""
    monkeypatch.setenv("MGX_GPU_ARCH", "sm_90a")
    with pytest.raises(CompileError, match="kernel bad_kernel: a path ends without a return, at line .*unreachable"):
        compiled(["if idiv(args[1], 0) > 3:", "    args[2] = 1"])
