"""Records as data: round trips, refusal of malformed records, explanations of misses."""

from __future__ import annotations

import copy
import itertools
import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from mgx_numba.codegen.body import scalar_body
from mgx_numba.codegen.cpu.fingerprint import device_fingerprint
from mgx_numba.codegen.problems.convolution import ConvProblem
from mgx_numba.codegen.problems.element_types import element_types
from mgx_numba.codegen.problems.epilogue import Epilogue, EpilogueOperand
from mgx_numba.codegen.problems.gemm import BlockFormat, GemmProblem
from mgx_numba.codegen.tuning.files import best, read_records, records_from, write_records
from mgx_numba.codegen.tuning.record import Problem, TuningRecord, explain_miss
from mgx_numba.codegen.tuning.request import Request, extents, least_bytes, problem_of
from mgx_numba.core.types import Type
from mgx_numba.errors import FormatError

from .support import HERE, THERE, problem, record


def test_record_round_trip():
    value = record(noise=0.25, configuration={"rows": 12, "panels": 3})
    assert TuningRecord.from_json(json.loads(json.dumps(value.to_json()))) == value


def test_fingerprint_of_this_machine_round_trip():
    own = device_fingerprint()
    assert own.cores >= 1 and own.vector_bits in (128, 256, 512)
    assert TuningRecord.from_json(record(fingerprint=own).to_json()).fingerprint == own


@pytest.mark.parametrize(
    ("path", "value"),
    [
        (("solver",), 3),
        (("date",), None),
        (("seconds",), -1.0),
        (("seconds",), float("nan")),
        (("noise",), True),
        (("configuration",), {"rows": -1}),
        (("configuration",), {"rows": False}),
        (("configuration",), {"rows": "6"}),
        (("configuration",), {"rows": 1 << 60}),
        (("configuration",), [1]),
        (("problem",), []),
        (("problem", "operation"), 1),
        (("problem", "threads"), 0),
        (("fingerprint",), None),
        (("fingerprint", "cpu"), 7),
        (("fingerprint", "features"), ["a", 1]),
        (("fingerprint", "cores"), "2"),
        (("fingerprint", "versions"), {"numba": 1}),
    ],
)
def test_malformed_record_is_refused(path: tuple[str, ...], value: Any):
    tree: dict[str, Any] = copy.deepcopy(record().to_json())
    inner = tree
    for name in path[:-1]:
        inner = inner[name]
    inner[path[-1]] = value
    with pytest.raises(FormatError, match=f"record 0.*{path[-1]}"):
        records_from([tree])


def test_json_file_round_trip_and_damage(tmp_path: Path):
    path = tmp_path / "records.json"
    write_records(path, [record(1), record(2)])
    assert read_records(path) == [record(1), record(2)]
    data = path.read_text()
    for damaged in (data[: len(data) // 2], "[]", data.replace('"version": 1', '"version": 9'), "\0\0"):
        path.write_text(damaged)
        with pytest.raises(FormatError, match=r"records\.json"):
            read_records(path)
    assert [p.name for p in tmp_path.glob("*.tmp")] == []


def test_best_keeps_the_fastest_of_each_problem_and_machine():
    records = [record(1, 3.0), record(1, 2.0), record(1, 1.0, THERE), record(2, 5.0)]
    assert best(records) == [record(1, 2.0), record(1, 1.0, THERE), record(2, 5.0)]


def test_explain_miss():
    assert "no record of operation dot" in explain_miss(problem(), HERE, [])
    other = replace(record(), problem=problem().of("convolution", 2, {}))
    assert "no record of operation dot" in explain_miss(problem(), HERE, [other])
    assert "exists" in explain_miss(problem(), HERE, [record()])
    text = explain_miss(problem(5), HERE, [record(4), record(6, fingerprint=THERE)])
    assert "m (recorded 4, wanted 5)" in text and "machine" not in text
    text = explain_miss(problem(4), HERE, [record(9), record(4, fingerprint=THERE)])
    assert 'cpu (recorded "skylake", wanted "znver4")' in text and "features (-bmi)" in text
    assert "cores (recorded 4, wanted 8)" in text and "problem" not in text
    newer = replace(HERE, versions=(("mgx_numba", "1"), ("numba", "2")))
    assert 'versions.numba (recorded "1", wanted "2")' in explain_miss(problem(), newer, [record()])
    assert "threads (recorded 2, wanted 7)" in explain_miss(problem(threads=7), HERE, [record()])


def test_problem_of_a_contraction_names_everything_that_a_kernel_depends_on():
    epilogue = Epilogue(
        (EpilogueOperand("float32", "full"),),
        scalar_body(lambda s, acc, e0: s.add(acc, e0), [Type.float_type] * 2),
        name="add",
    )
    request = Request(GemmProblem(3, 4, 5), epilogue, ((4,),), 2, True)
    keys = {request.key()}
    for changed in (
        replace(request, problem=GemmProblem(3, 4, 6)),
        replace(request, problem=GemmProblem(3, 4, 5, b_constant=False)),
        replace(request, problem=GemmProblem(3, 4, 5, a_strides=(1, 3))),
        replace(request, problem=GemmProblem(3, 4, 5, types=element_types("float64"))),
        replace(request, problem=GemmProblem(3, 4, 5, types=element_types("uint8 int8 int32 int32"))),
        replace(request, epilogue=replace(epilogue, name="mul")),
        replace(request, epilogue=replace(epilogue, operands=(EpilogueOperand("float32", "per_n"),))),
        replace(request, strides=((8,),)),
        replace(request, threads=3),
        replace(request, fast_math=False),
        replace(request, problem=ConvProblem(1, 4, 4, (5, 5), (3, 3))),
        replace(request, problem=ConvProblem(1, 4, 4, (5, 5), (3, 3), out_strides=(60, 20, 4))),
        replace(request, problem=ConvProblem(1, 4, 4, (5, 5), (3, 3), line_behind=True)),
        replace(request, problem=ConvProblem(1, 4, 4, (5, 5), (3, 3), shuffled=2)),
    ):
        keys.add(changed.key())
    assert len(keys) == 15
    assert len({key.work for key in keys}) == 14  # the number of threads is no part of the work
    assert request.key().from_json(json.loads(request.key().key)) == request.key()


def test_formats_of_blocks_are_read_back() -> None:
    """Flags that are missing in records of earlier versions are false."""
    seen = set()
    for flags in itertools.product([False, True], repeat=4):
        form = BlockFormat(4, 32, *flags)
        key = Request(GemmProblem(1, 48, 64, blocks=form), Epilogue(), (), 2, True).key()
        written = problem_of(replace(record(), problem=Problem.from_json(json.loads(key.key))))
        assert isinstance(written, GemmProblem) and written.blocks == form
        seen.add(key)
    assert len(seen) == 16
    plain = Request(GemmProblem(1, 48, 64, blocks=BlockFormat(4, 32, True)), Epilogue(), (), 2, True)
    assert plain.key().fields["blocks"] == [4, 32, 1]


def test_the_types_of_a_contraction_are_one_text_of_its_key_and_read_back():
    one, four = (
        Request(GemmProblem(3, 4, 5, types=element_types(text)), Epilogue(), (), 2, False)
        for text in ("float64", "uint8 int8 int32 int32")
    )
    assert one.key().fields["dtype"] == "float64"
    assert four.key().fields["dtype"] == "uint8 int8 int32 int32"
    for request in (one, four):
        found = replace(record(), problem=request.key())
        assert problem_of(found) == request.problem
    apart = ConvProblem(1, 4, 4, (5, 5), (3, 3), out_strides=(60, 20, 4), line_behind=True)
    asked = Request(apart, Epilogue(), (), 2, False)
    assert problem_of(replace(record(), problem=Problem.from_json(json.loads(asked.key().key)))) == apart
    shuffled = Request(ConvProblem(1, 4, 4, (5, 5), (1, 1), groups=2, shuffled=2), Epilogue(), (), 2, False)
    assert problem_of(replace(record(), problem=shuffled.key())) == shuffled.problem
    assert extents(asked) == (100 + 64, 144, 2 * 20 + 2 * 4 + 4, [])
    assert least_bytes(one.problem) == 8 * (15 + 20 + 12)
    assert least_bytes(four.problem) == 15 + 20 + 4 * 12
    for dtype in (None, 3, [], "float", "float32 float32"):
        changed = {**one.key().fields, "dtype": dtype}
        assert problem_of(replace(record(), problem=Problem.from_json(changed))) is None
