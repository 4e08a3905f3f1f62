"""`tests.guides` reports the outcome of a guide's blocks correctly."""

from __future__ import annotations

import re
import sys
from pathlib import Path

import pytest

from mgx_numba.targets.registry import missing
from tests.guide_programs.programs import mended
from tests.guide_programs.python_text import restored
from tests.guides import blocks, main, unknown_names
from tests.library.support import needs_compiler

MARKDOWN = """
Look at `migraphx-driver op -l`, then at the synopsis `migraphx-driver perf [-n] [--no-such-flag] --onnx`.

```python
import migraphx
model = migraphx.parse_onnx("model.onnx")
model.compile(migraphx.get_target("gpu"))
print(np.array(model.run({"input": np.zeros((1, 3, 224, 224), np.float32)})[0]).shape)
```

```python
print(model)
```

```python
model.no_such_method()
```

```python
if True:
model.reshape(inputs={}, colour=1)  # migraphx.nothing
```

```bash
git clone somewhere
/opt/bin/migraphx-driver params --onnx resnet50.onnx
migraphx-driver params nothing.onnx
```

```
output of something
```
"""

CPP = """
```c++
migraphx::program CreateNet()
{
    migraphx::program net;
    migraphx::module *mainModule = net.get_main_module();
    auto x = mainModule->add_parameter("x", migraphx::shape{migraphx::shape::float type, {3}});
    mainModule->add_return({mainModule->add_instruction(migraphx::make_op("neg"), x)});
    return net;
}
```

```c++
int main(int argc, char* argv[])
{
    migraphx::program net = CreateNet();
    net.compile(migraphx::gpu::target{});
    std::vector<float> data{1, 2, 3};
    migraphx::parameter_map inputs;
    inputs["x"] = migraphx::argument{migraphx::shape{migraphx::shape::float_type, {3}}, data.data()};
    return net.eval(inputs)[0].as_vector<float>() != std::vector<float>{-1, -2, -3};
}
```

```c++
int main() { return migraphx::shape(migraphx::shape::float_type).elements() == 1; }
```

```c++
migraphx::to_nowhere(net);
```
"""

PAGE = """<p>First
<code>bash
migraphx-driver onnx -l</code></p>
<p>```py</p>
<h1>a comment</h1>
<p>import migraphx
assert 1 &lt; 2
```</p>
<p>and <code>migraphx-driver --version</code>.</p>
"""


def test_table_of_a_guide(tmp_path: Path, capsys: pytest.CaptureFixture) -> None:
    (tmp_path / "guide.md").write_text(MARKDOWN)
    failed = main([str(tmp_path), "--out", str(tmp_path.parent / "table")])
    rows = [[cell.strip() for cell in line.split("|")[1:-1]] for line in capsys.readouterr().out.splitlines()[1:]]
    gpu = "works (cpu for gpu)" if missing("gpu") else "works (gpu)"
    expected = ["works", "FAILS", gpu, "works", "FAILS", "FAILS", "FAILS", "-"]
    assert [row[4] for row in rows] == expected and failed == 4
    reasons = [row[5] for row in rows if row[4] == "FAILS"]
    for text, reason in zip(("no --no-such-flag", "no_such_method", "model.reshape(colour=)", "nothing.onnx"), reasons):
        assert text in reason


def test_blocks_of_a_page() -> None:
    found = [(block.language, block.text.strip()) for block in blocks(PAGE)]
    assert found == [
        ("bash", "migraphx-driver onnx -l"),
        ("py", "# a comment\nimport migraphx\nassert 1 < 2"),
        ("bash", "migraphx-driver --version"),
    ]


def test_names_of_text_that_does_not_parse() -> None:
    text = "if x:\nmigraphx.generate_argument(s = 3) migraphx.to_nowhere(1) model.compile(t = 1, device_id = 0)"
    assert unknown_names(text) == ["migraphx.to_nowhere"]


@needs_compiler
def test_cpp_of_a_guide_is_compiled_and_run(tmp_path: Path, capsys: pytest.CaptureFixture) -> None:
    (tmp_path / "guide.md").write_text(CPP)
    assert main([str(tmp_path)]) == 2
    rows = [[cell.strip() for cell in line.split("|")[1:-1]] for line in capsys.readouterr().out.splitlines()[1:]]
    assert [row[4] for row in rows] == [
        "works",
        "works (cpu for gpu)" if missing("gpu") else "works (gpu)",
        "FAILS",
        "FAILS",
    ]
    assert rows[0][5] == "a function for what follows; misprints mended: 1"
    assert "block ended with 1" in rows[2][5] and "to_nowhere" in rows[3][5]


def test_misprints_of_cpp_are_mended() -> None:
    broken = "int n = // how many,\n  多少 (N, C, H, W)\n  3; // 顺序为\n(N, C, H, W) int m = 4;\n"
    text, count = mended(broken + "shape::float type\n")
    assert count == 3 and "shape::float_type" in text
    assert re.sub(r"//[^\n]*", "", text).split() == "int n = 3; int m = 4; shape::float_type".split()


def test_modules_imported_beside_a_stand_in_are_imported_once(tmp_path: Path, capsys: pytest.CaptureFixture) -> None:
    sys.modules.pop("this", None)
    (tmp_path / "guide.md").write_text("```python\nimport cv2\nimport this\nfirst = this\n```\n")
    (tmp_path / "later.md").write_text("```python\nimport sys\nassert 'this' in sys.modules\n```\n")
    assert main([str(tmp_path)]) == 0 and "cv2" not in sys.modules


BROKEN_PYTHON = """
def scaled(values, by):
    found = [v * by for v in values]# 顺序为
端, 多少
for i in range(len(found)):
    if i != 0:
    found[i] -=
    found[0]
return found
if __name__ == '__main__': # 主
table = {
    "x": scaled([1, 2, 3], 2)
}# 结果
多
for key in table:
    table[key] = table.get_no thing(key) if False else table[key]
answer = table["x"]
"""


def test_lines_of_python_are_mended() -> None:
    text, count = restored(BROKEN_PYTHON)
    names: dict = {"__name__": "__main__"}
    exec(compile(text, "<guide>", "exec"), names)
    assert names["answer"] == [2, 2, 4] and "get_nothing(" in text and count >= 10
