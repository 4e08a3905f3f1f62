"""Each concept has one name."""

from __future__ import annotations

import re
from collections import defaultdict
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]


def test_no_two_classes_have_one_name() -> None:
    """Classes of modules, private ones too: a name in a traceback or a search is that of one class."""
    found = defaultdict(list)
    for path in sorted((ROOT / "mgx_numba").rglob("*.py")):
        for name in re.findall(r"^class (\w+)", path.read_text(), re.MULTILINE):
            found[name].append(str(path.relative_to(ROOT)))
    assert len(found) > 300
    # onnxruntime-genai gives two public classes of mgx_numba.llm their names.
    assert {name: p for name, p in found.items() if len(p) > 1 and name not in ("Model", "Tensor")} == {}
