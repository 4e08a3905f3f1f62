"""The programs of docs/cpp.md compile and run as they are."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from onnx import TensorProto, helper

from mgx_numba.runtime.cpu.library.linking import compiler

from ..frontends.support import make_model
from ..values import normal
from .support import build, exported, finished, needs_compiler

PAGE = Path(__file__).resolve().parents[2] / "docs" / "cpp.md"
BEFORE = {
    "cpp": "static const void* my_data(const char*) { static float data[12]; return data; }\n",
    "c": (
        "#include <stdio.h>\n#include <stdlib.h>\nstatic float pixels[12], scores[12];\n"
        "static void fail(const char *message) { puts(message); exit(1); }\n"
    ),
}


@needs_compiler
@pytest.mark.parametrize("language", ["cpp", "c"])
def test_program_of_the_page_runs(language: str, tmp_path: Path) -> None:
    model = make_model([helper.make_node("Relu", ["x"], ["y"])], {"x": normal(3, 4)}, {"y": TensorProto.FLOAT})
    _, library = exported(model.SerializeToString(), tmp_path / "out", "resnet50")
    (block,) = re.findall(rf"^```{language}\n(.*?)^```$", PAGE.read_text(), re.MULTILINE | re.DOTALL)
    includes = re.findall(r"^#include.*\n", block, re.MULTILINE)
    source = tmp_path / f"page.{language}"
    body = block.replace("".join(includes), "")
    source.write_text("".join(includes) + BEFORE[language] + "int main(void) {\n" + body + "return 0; }\n")
    if language == "cpp":
        program = build(source, tmp_path / "out" / "include", tmp_path / "page")
    else:
        program = tmp_path / "page"
        include = tmp_path / "out" / "include"
        finished([*(compiler() or []), f"-I{include}", source, library, f"-Wl,-rpath,{library.parent}", "-o", program])
    finished([program], cwd=tmp_path)
