"""Argument blocks: text and values from one object, and records that kernels pass to each other."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from mgx_numba.codegen.arguments import Arguments
from mgx_numba.codegen.cpu.kernel import cpu_kernel
from mgx_numba.codegen.cpu.records import Holds, Record, RecordText, Word, pointer
from mgx_numba.codegen.launch import Callee, Launch, Mark, Operand, TaskRange
from mgx_numba.codegen.statements import for_tasks, indent, kernel_text
from mgx_numba.errors import CompileError

from .launching import run_launch

NOTHING = cpu_kernel("nothing_kernel", kernel_text(["pass"]))


def some_arguments() -> Arguments:
    arguments = Arguments()
    arguments.pointer("x", Operand("data", 64), "float32")
    arguments.callee("tile", NOTHING)
    arguments.integers(rows=np.int64(7), columns=9)
    arguments.fault()
    return arguments


def test_text_and_values_have_one_order() -> None:
    arguments = some_arguments()
    assert arguments.names == ("x", "tile", "rows", "columns", "fault", "step_number")
    assert arguments.values == (Operand("data", 64), Callee(NOTHING), 7, 9, Mark.FAULT, Mark.STEP)
    assert arguments.bind() == [
        "x = pointer_float32(args, 0)",
        "rows = args[2]",
        "columns = args[3]",
        "fault = words_at(args, 4)",
        "step_number = args[5]",
    ]
    assert arguments.bind(["columns", "x"]) == ["columns = args[3]", "x = pointer_float32(args, 0)"]
    assert arguments.call("tile", "block", 0, "wide") == "call_kernel(args, 1, block, 0, wide)"


def test_elements_of_a_table_lie_row_by_row() -> None:
    arguments = Arguments()
    arguments.integer("count", 2)
    arguments.table("moves", ("source", "target"), [(5, 6), (7, 8)])
    assert arguments.values == (2, 5, 6, 7, 8)
    assert arguments.element("moves", "k", "target") == "args[2 + 2 * k]"


def test_an_operand_is_pointed_to_from_its_start_if_only_named() -> None:
    arguments = Arguments()
    assert arguments.pointer("x", "data", "int8") == "x"
    assert arguments.values == (Operand("data"),)


@pytest.mark.parametrize("name", ["args", "begin", "end", "task", "two words", ""])
def test_names_that_no_argument_can_have(name: str) -> None:
    with pytest.raises(CompileError, match="cannot be called"):
        Arguments().integer(name, 1)


def test_what_is_refused() -> None:
    arguments = some_arguments()
    with pytest.raises(CompileError, match="'rows' is declared twice"):
        arguments.integer("rows", 1)
    with pytest.raises(CompileError, match="'step_number' is declared twice"):
        arguments.callee("step_number", NOTHING)
    with pytest.raises(CompileError, match=r"no argument 'row'; declared are x, tile, rows"):
        arguments.bind(["row"])
    with pytest.raises(CompileError, match="'rows' is not the code of a kernel"):
        arguments.call("rows", "block", 0, 1)
    with pytest.raises(CompileError, match="no argument 'other'"):
        arguments.provide("other", NOTHING)
    with pytest.raises(CompileError, match="'tile' has its value already"):
        arguments.provide("tile", NOTHING)


def test_a_kernel_may_be_provided_later_but_not_never() -> None:
    arguments = Arguments()
    arguments.callee("finish")
    assert arguments.call("finish", "call", "row", "row + 1") == "call_kernel(args, 0, call, row, row + 1)"
    with pytest.raises(CompileError, match="no kernel was provided for the arguments finish"):
        _ = arguments.values
    arguments.provide("finish", NOTHING)
    assert arguments.values == (Callee(NOTHING),)


BLOCK = Record(
    "block",
    (
        pointer("x", "what is read"),
        Word("scale"),
        Word("table", "places of x", Holds.WORDS),
        Word("step", "elements of each kind", count=3),
        pointer("out", "of each half", count=2),
        Word("last"),
    ),
)


def test_fields_lie_in_their_order() -> None:
    assert BLOCK.size == 9
    assert [BLOCK.number(word.name) for word in BLOCK.words] == [0, 1, 2, 3, 6, 8]
    assert BLOCK.number("step", 2) == 5
    longer = BLOCK.followed_by("longer", (Word("more"),))
    assert (longer.size, longer.number("more"), longer.number("out", 1)) == (10, 9, 7)


def test_places_are_numbers_or_expressions() -> None:
    assert [RecordText(BLOCK, "b", first).place("step", 1) for first in (0, 9, "entry")] == ["4", "13", "entry + 4"]
    assert [RecordText(BLOCK, "b", first).place("step", "u") for first in (0, 9, "entry")] == [
        "3 + u",
        "12 + u",
        "entry + 3 + u",
    ]
    assert [RecordText(BLOCK, "b", first).place("x") for first in (0, 9, "entry")] == ["0", "9", "entry"]


def test_what_records_refuse() -> None:
    text = RecordText(BLOCK, "b")
    with pytest.raises(CompileError, match=r"the record 'block' has no field 'y'; it has x, scale"):
        text.put("y", 1)
    with pytest.raises(CompileError, match="'step' of the record 'block' has no word 3"):
        text.put("step", 1, 3)
    with pytest.raises(CompileError, match="'x' of the record 'block' holds elements, not integer"):
        text.get("x")
    with pytest.raises(CompileError, match="'scale' of the record 'block' holds integer, not words"):
        text.words("scale")
    with pytest.raises(CompileError, match="'table' of the record 'block' holds words, not elements"):
        text.elements("table", "float32")
    with pytest.raises(CompileError, match="several fields called more"):
        Record("block", (Word("more"), Word("one"), Word("more")))
    for word in (Word("none", count=0), Word("two words")):
        with pytest.raises(CompileError, match=f"cannot have {word.count} words called '{word.name}'"):
            Record("block", (word,))


def _scaled() -> Any:
    """A kernel that is told all by a block: ``out[half][i] = x[table[i]] * scale + step[i mod 3]`` for its tasks."""
    call = RecordText(BLOCK, "call")
    lines = [
        f"x = {call.elements('x', 'int64')}",
        f"table = {call.words('table')}",
        *for_tasks([
            f"value = load_scalar(x, table[task]) * {call.get('scale')} + {call.get('step', 'imod(task, 3)')}",
            f"half = 1 if task >= {call.get('last')} else 0",
            f"store_scalar({call.elements('out', 'int64', 'half')}, task, value)",
        ]),
    ]  # fmt: skip
    return cpu_kernel("scaled_kernel", kernel_text(lines, call.name))


def test_a_kernel_reads_the_fields_that_another_one_wrote() -> None:
    arguments, block = Arguments(), RecordText(BLOCK, "block")
    for name in ("x", "one", "other"):
        arguments.pointer(name, name, "int64")
    arguments.integer("count", 7)
    arguments.callee("scaled", _scaled())
    lines = [
        block.local(),
        "table = local_int64(7)",
        "for i in range(count):",
        "    table[i] = count - 1 - i",
        *block.fill(x="x", scale=10, table="table", last=4),
        "for u in range(3):",
        *indent([block.put("step", "u + 1", "u")]),
        block.put("out", "one", 1),
        block.put_address("out", block.address("out", 1), 0),
        block.put("out", "other", 1),
        *for_tasks([arguments.call("scaled", block.name, 0, "count")]),
    ]
    kernel = cpu_kernel("scaling_kernel", kernel_text([*arguments.bind(), *lines]))
    x, one, other = np.arange(7, dtype=np.int64), np.zeros(7, np.int64), np.zeros(7, np.int64)
    run_launch(Launch(kernel, arguments.values, TaskRange(1)), {"x": x, "one": one, "other": other})
    expected = x[::-1] * 10 + 1 + x % 3
    np.testing.assert_array_equal(one, np.where(x < 4, expected, 0))
    np.testing.assert_array_equal(other, np.where(x < 4, 0, expected))
