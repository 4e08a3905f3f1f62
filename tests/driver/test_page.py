"""The page of `perf --html`: its content, and that it is self-contained."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest

import mgx_numba
from mgx_numba.codegen.gpu.driver import device
from mgx_numba.driver.page import writing
from mgx_numba.driver.page.writing import read_page, write_page
from mgx_numba.errors import FormatError
from mgx_numba.runtime.plan import Use
from mgx_numba.targets.base import stages_of
from tests.driver.support import drive, small_model
from tests.dynamic.models import two_stages

from ..interpreter.engine import interpreted

FOLDER = Path(writing.__file__).parent


@pytest.fixture
def model(tmp_path: Path) -> Path:
    return small_model(tmp_path / "small.onnx")


def _page(model: Path, path: Path, *flags: object) -> dict[str, Any]:
    assert drive("perf", model, "-n", "2", "--html", path, "--batch", "64", *flags) == 0
    return read_page(str(path))


def test_page_has_the_program_its_kernels_and_their_sources(model: Path, tmp_path: Path, capsys: Any) -> None:
    page = _page(model, tmp_path / "a.html")
    assert page["title"] == "small.onnx" and page["target"] == "cpu" and page["batch"]["size"] == 64
    assert [n["name"] for n in page["nodes"]] == ["gemm", "relu", "softmax"]
    assert page["inputs"] == [{"name": "x", "shape": "float_type, {64, 6}, {6, 1}"}]
    fused, rows = page["instructions"]
    assert fused["nodes"] == ["gemm", "relu"] and fused["kind"] == "contraction" and fused["inputs"] == [-1]
    assert fused["solver"].endswith(", chosen by cost model") and "solver" not in rows
    assert fused["operators"][0] == "dot" and "relu" in fused["operators"] and len(fused["members"]) > 1
    assert rows["nodes"] == ["softmax"] and rows["kind"] == "rows" and rows["inputs"] == [0]
    for step in page["steps"]:
        assert step["seconds"] > 0 and page["kernels"][step["kernel"]]["text"].startswith("def kernel(")
    assert {s["instruction"] for s in page["steps"]} == {0, 1}
    assert page["limits"]["gflops"] > 0 and len(page["total"]) == 2
    assert page["memory"]["uses"] == [{"offset": 0, "bytes": 64 * 4 * 4, "first": 0, "last": 1}]
    assert page["other"] is None


def test_page_is_one_file_that_loads_nothing(model: Path, tmp_path: Path, capsys: Any) -> None:
    _page(model, tmp_path / "a.html")
    text = (tmp_path / "a.html").read_text()
    assert "{{" not in re.sub(r"<script.*?</script>", "", text, flags=re.DOTALL)
    assert not re.search(r"""(src|href)\s*=\s*["'](?!#)""", text) and "@import" not in text and "url(" not in text
    outside = set(re.findall(r"https?://[^\s\"'<]+", text))
    assert outside == {"http://www.w3.org/2000/svg"}  # a name, which nobody fetches
    assert "default-src 'none'" in text


def test_nothing_in_the_data_ends_the_script(tmp_path: Path) -> None:
    path = str(tmp_path / "a.html")
    title = "</script><script>alert(1)</script>{{script}}<!--"
    write_page(path, {"format": 1, "title": title})
    text = Path(path).read_text()
    assert "alert(1)</script>" not in text.replace("&lt;/script&gt;", "")
    assert read_page(path)["title"] == title


def test_pages_are_compared(model: Path, tmp_path: Path, capsys: Any) -> None:
    first = _page(model, tmp_path / "a.html", "--disable-fast-math")
    second = _page(model, tmp_path / "b.html", "--compare", tmp_path / "a.html")
    assert second["other"]["steps"] == first["steps"] and second["other"]["options"]["fast_math"] is False
    assert "kernels" not in second["other"]
    third = _page(model, tmp_path / "c.html", "--compare", tmp_path / "b.html")
    assert "other" not in third["other"]
    capsys.readouterr()
    assert drive("perf", model, "--compare", tmp_path / "a.html") == 2
    assert "--compare needs --html FILE" in capsys.readouterr().err


@pytest.mark.parametrize(
    "text, message",
    [
        (None, "cannot be read: No such file"),
        ("<html></html>", "not a page that perf --html wrote"),
        ('<script type="application/json" id="data">{"a":</script>', "not a page that perf --html wrote"),
        ('<script type="application/json" id="data">{"format": 99}</script>', "its format is 99, expected 1"),
    ],
)
def test_other_files_are_no_pages(text: str | None, message: str, model: Path, tmp_path: Path, capsys: Any) -> None:
    path = tmp_path / "x.html"
    if text is not None:
        path.write_text(text)
    with pytest.raises(FormatError, match=message):
        read_page(str(path))
    assert drive("perf", model, "--html", tmp_path / "y.html", "--compare", path) == 2
    out, err = capsys.readouterr()
    assert message in err and not out


def test_unwritable_page_is_told_before_measuring(model: Path, tmp_path: Path, capsys: Any) -> None:
    assert drive("perf", model, "--html", tmp_path / "no" / "a.html") == 2
    assert "Compilation time" not in capsys.readouterr().err


@pytest.mark.parametrize("flags", [["--ref"], ["--dyn-input-dim", "@x", "[{min:1,max:64},6]"]])
def test_pages_of_other_targets_and_dynamic_inputs(flags: list[str], model: Path, tmp_path: Path, capsys: Any) -> None:
    path = tmp_path / "a.html"
    assert drive("perf", model, "-n", "2", "--html", path, *flags) == 0
    page = read_page(str(path))
    assert page["steps"] and all(0 <= s["instruction"] < len(page["instructions"]) for s in page["steps"])
    assert (page["memory"] is None) == (flags == ["--ref"])


def test_programs_in_stages_have_a_page(tmp_path: Path, capsys: Any) -> None:
    onnx.save(two_stages().model, tmp_path / "p.onnx")
    lens = ["@x", 1, 3, 8, 9, "@proposals", 5, 4, "@confidence", 5]
    outputs = ["--html", tmp_path / "a.html", "--trace", tmp_path / "t.json"]
    assert drive("perf", tmp_path / "p.onnx", "-n", 2, "--input-dim", *lens, *outputs) == 0
    page = read_page(str(tmp_path / "a.html"))
    assert all(0 <= s["instruction"] < len(page["instructions"]) for s in page["steps"])
    assert len(page["inputs"]) == 3 and page["memory"]["arena"] > 0
    second = [k for k, ins in enumerate(page["instructions"]) if ins["name"].endswith(" of stage 2")]
    assert any("roialign" in page["instructions"][k]["operators"] for k in second)
    crossing = [i for k in second for i in page["instructions"][k]["inputs"] if i >= 0 and i not in second]
    assert crossing and max(u["last"] for u in page["memory"]["uses"]) <= len(page["steps"])
    out = capsys.readouterr().out
    assert "stage 1 of 2:" in out and "stage 2 of 2:" in out


def test_uses_of_memory_do_not_overlap_unless_in_place() -> None:
    p = mgx_numba.program()
    m = p.get_main_module()
    x = m.add_parameter("x", mgx_numba.shape(type="float", lens=[128, 128]))
    values = [x]
    for _ in range(3):
        values.append(m.add_instruction(mgx_numba.op("dot"), [values[-1], x]))
    m.add_return([m.add_instruction(mgx_numba.op("concat", axis=0), values[1:])])
    (stage,) = stages_of(p.compile("cpu").compiled, {"x": np.zeros((128, 128), np.float32)})
    plan = stage.plan
    assert all(0 <= u.first <= u.last < len(plan.steps) for u in plan.uses)
    assert max((u.offset + u.bytes for u in plan.uses), default=0) <= plan.arena_bytes
    for k, a in enumerate(plan.uses):
        for b in plan.uses[:k]:
            together = a.first < b.last and b.first < a.last
            assert not together or a.offset + a.bytes <= b.offset or b.offset + b.bytes <= a.offset


def test_kept_plans_have_their_uses(model: Path, tmp_path: Path) -> None:
    path = tmp_path / "p.mxr"
    program = mgx_numba.parse_onnx(model, map_input_dims={"x": [64, 6]}).compile("cpu")
    program.save(path)
    mgx_numba.load(path)
    (stage,) = stages_of(mgx_numba.load(path).compiled, {"x": np.zeros((64, 6), np.float32)})
    assert stage.plan.uses == (Use(0, 1024, 0, 1),)


def test_drivers_were_asked_what_a_device_is_that_is_interpreted(
    model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Any
) -> None:
    def asked(*arguments: object) -> None:
        raise AssertionError("a driver was asked")

    monkeypatch.setattr(device, "model_of", asked)
    monkeypatch.setenv("MGX_GPU_ARCH", "sm_90a")
    with interpreted():
        page = _page(model, tmp_path / "a.html", "--gpu", "-n", "1", "--batch", "4")
    assert page["target"] == "gpu" and page["machine"] == {} and page["limits"] is None
    assert page["kernels"] and page["memory"]["uses"]
    assert "Rates (limits" not in capsys.readouterr().out


def test_scripts_are_valid_and_all_in_the_page(tmp_path: Path) -> None:
    assert {p.name for p in FOLDER.glob("*.js")} == set(writing.SCRIPTS)
    node = shutil.which("node")
    if node is None:
        pytest.skip("node is not installed")
    whole = tmp_path / "all.js"
    whole.write_text("\n".join((FOLDER / name).read_text() for name in writing.SCRIPTS))
    subprocess.run([node, "--check", whole], check=True)


def test_boxes_of_the_graph_lie_apart_and_below_what_they_read(tmp_path: Path) -> None:
    """The page's own layout, run on random graphs."""
    node = shutil.which("node")
    if node is None:
        pytest.skip("node is not installed")
    rng = np.random.default_rng(0)
    instructions = [
        {"name": f"@{k}", "operators": ["add"] * int(rng.integers(1, 12)), "kind": "pointwise",
         "inputs": sorted({int(i) for i in rng.integers(max(-2, k - 9), max(k, 1), 2) if i != k})}
        for k in range(300)
    ]  # fmt: skip
    page = {"inputs": [{"name": n, "shape": "float_type, {1}"} for n in "ab"], "instructions": instructions}
    check = """
const boxes = layout(page);
if (boxes.length !== 302) throw new Error("boxes are missing");
for (const box of boxes) for (const source of box.sources) {
  if (box.y < source.y + source.height) throw new Error(`${box.id} is above ${source.id}`);
}
for (const a of boxes) for (const b of boxes) {
  const apart = a.y !== b.y || Math.abs(a.x - b.x) >= BOX_WIDTH || a === b;
  if (!apart) throw new Error(`${a.id} and ${b.id} overlap`);
}
"""
    sources = [(FOLDER / name).read_text() for name in ("dom.js", "graph.js")]
    script = tmp_path / "layout.js"
    script.write_text("\n".join([*sources, f"const page = {json.dumps(page)};", check]))
    subprocess.run([node, script], check=True)


def test_page_files_belong_to_the_package() -> None:
    text = (FOLDER.parents[2] / "setup.cfg").read_text()
    assert all(f"driver/page/*{suffix}" in text for suffix in {p.suffix for p in FOLDER.iterdir()} - {".py", ""})
