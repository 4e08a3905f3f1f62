"""Tables of the documents are what `bench.measurements` writes, and measurements become tables."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

from bench.measurements import __main__ as command
from bench.measurements.measured import float32_table, gpu_networks_table, precisions_table, start_table, torch_table
from bench.measurements.tables import DATA, DOCUMENTS, Table, keep, kept, rendered, with_tables


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda path: path.name)
def test_documents_have_the_tables_that_the_command_writes(document: Path) -> None:
    text, tables = document.read_text(), kept()
    assert rendered(text, tables) == text
    assert len(re.findall("<!-- table ", text)) == len(re.findall("<!-- end -->", text)) >= 1


def test_each_table_of_figures_is_marked_with_machine_and_commit() -> None:
    tables = kept()
    for name, table in tables.items():
        assert table.machine and all(len(row) == len(table.header) for row in table.rows), name
        assert name == "summary" or bool(table.commit) != bool(table.recorded), name
    text = next(path for path in DOCUMENTS if path.name == "measurements.md").read_text()
    loose = re.sub(r"(?s)<!-- table .*?<!-- end -->", "", text)
    assert re.findall(r"(?m)^\| ---.*\n(\| \S+)", loose) == ["| Zen"]  # the machines, which are not measured
    assert set(re.findall(r"<!-- table (\S+) -->", text)) == tables.keys() - {"summary"}


def test_the_summary_takes_its_figures_from_the_tables() -> None:
    tables = kept()
    name, _ = tables["summary"].summary["0"]
    figures = {**tables[name].figures, "mean": 9.0, "least": 8.0}
    tables[name] = Table(**{**vars(tables[name]), "figures": figures})
    assert "| 9.00, least 8.00 |" in tables["summary"].text(tables)
    tables[name] = Table(**{**vars(tables[name]), "figures": {}})
    assert "| not measured |" in tables["summary"].text(tables)


def test_data_are_written_as_they_are_read(tmp_path: Path) -> None:
    keep(kept(), tmp_path / "data.json")
    assert (tmp_path / "data.json").read_bytes() == DATA.read_bytes()


def test_a_table_of_another_machine_follows_that_of_the_first() -> None:
    text = "a\n<!-- table float32@one -->\n<!-- end -->\nb\n"
    found = with_tables(text, ["float32@one", "float32@two", "other@two"])
    assert found == "a\n<!-- table float32@one -->\n<!-- end -->\n\n<!-- table float32@two -->\n<!-- end -->\nb\n"
    assert with_tables(found, ["float32@two"]) == found


def _model(name: str, ratio: float | None) -> dict[str, Any]:
    engines = {"mgx_numba": {"median_ms": 2.0}, "onnxruntime": {"median_ms": 3.0}}
    return {"name": name, "engines": engines, "ratio": ratio, "max_relative_error": 1e-6}


def test_records_of_models_become_rows_and_means() -> None:
    two = {name: _model(name, ratio) for name, ratio in (("a", 2.0), ("b", 8.0), ("c", None), ("a@8", 1.5))}
    table = float32_table(two, {"a": _model("a", 3.0)}, "run it")
    assert table.rows[0] == ["a", "2.000", "3.000", "-", "2.00", "3.00", "1.0e-06"]
    assert table.rows[2][4] == "-" and table.rows[4] == ["geometric mean of 2", "", "", "", "4.00", "3.00", ""]
    assert table.rows[5][0] == "geometric mean of 1, batched"
    assert table.figures == pytest.approx(
        {"mean": 4, "least": 2, "count": 2, "one_mean": 3, "one_least": 3, "one_count": 1}
    )
    assert table.text({}).splitlines()[-1] == "*`run it`*"


def test_costs_of_processes_become_sums_and_ratios() -> None:
    ours = [{"engine": "mgx_numba", "way": "parse", "cache": "filled", "model": m, "seconds": 1.0} for m in "ab"]
    peer = [
        {"engine": "onnxruntime", "way": "", "cache": "", "model": m, "seconds": s} for m, s in (("a", 2.0), ("b", 8.0))
    ]
    table = start_table([*ours, *peer, *peer], "")
    assert table.rows == [["parse filled", "2.00", "4.00", "2.00"], ["ONNX Runtime", "10.00", "", ""]]
    assert table.figures["parse_filled_onnxruntime_mean"] == pytest.approx(4)


def test_other_records_become_rows() -> None:
    times = {"mgx_numba bf16": {"median_ms": 1.0, "error": 0.1}, "openvino bf16": {"median_ms": 2.0, "error": 0.2}}
    table = precisions_table([{"model": "m", "engines": times}], "")
    assert table.rows == [["m, bf16, ours", "1.000", "1.0e-01", "2.00"], ["m, bf16, OpenVINO", "2.000", "2.0e-01", ""]]
    row = {"name": "t", "milliseconds": {"ours": 1.0, "inductor": 3.0}, "first": {"ours": 0.5}, "cold": 2.0}
    table = torch_table([row, {"name": "u", "failure": "why"}], "")
    assert table.rows == [["t", "-", "3.00", "1.00", "3.00", "2.0, 0.5, -"], ["u", "-", "-", "-", "why", ""]]
    networks = [{"name": "n", "kind": kind, "ms": 1.0, "inductor_ms": 2.0} for kind in ("fp16", "medium")]
    table = gpu_networks_table(networks, "")
    assert table.rows == [["n", "1.00; 2.00", "1.00; 2.00"]] and table.figures["medium_least"] == 2


def test_the_command_measures_keeps_and_writes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for path in DOCUMENTS:
        (tmp_path / path.name).write_bytes(path.read_bytes())
    monkeypatch.setitem(
        command.MEASURES, "float32", ("cpu", lambda folder, small: float32_table({"a": _model("a", 7.5)}, {}, "it"))
    )
    options = ["--data", str(tmp_path / "data.json"), "--documents", str(tmp_path)]
    assert command.main(["float32", "--small", *options]) == 0
    key = next(name for name, table in kept(tmp_path / "data.json").items() if table.command == "it")
    written = (tmp_path / "measurements.md").read_text()
    assert f"<!-- table {key} -->\n| model |" in written and "| a | 2.000 | 3.000 | - | 7.50 | - | 1.0e-06 |" in written
    assert command.main(["--check", *options]) == 0
    (tmp_path / "measurements.md").write_text(written.replace("7.50", "7.51"))
    assert command.main(["--check", *options]) == 1
    assert command.main(["--write", *options]) == 0 and (tmp_path / "measurements.md").read_text() == written


def test_figures_of_a_trial_do_not_reach_the_repository(tmp_path: Path) -> None:
    with pytest.raises(SystemExit):
        command.main(["float32", "--small"])
