"""`tests.guides` says of a guide's blocks what is true of them."""

from __future__ import annotations

from pathlib import Path

import pytest

from mgx_numba.targets.registry import missing
from tests.guides import blocks, cpp_names, main, unknown_names

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
    gpu = "works (cpu for gpu)" if missing("gpu") else "works"
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


def test_names_of_the_cpp_interface() -> None:
    assert (
        cpp_names("migraphx::program p = migraphx::load(file);") == "all names are in the header of exported libraries"
    )
    assert cpp_names("migraphx::program p = migraphx::parse_onnx(file);") == "Python's part: parse_onnx"
