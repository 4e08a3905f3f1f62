"""The programs of docs/cpp.md compile and run unchanged."""

from __future__ import annotations

import re
from pathlib import Path

import onnx
import pytest
from onnx import TensorProto, helper

from ..frontends.support import make_model
from ..values import normal
from .support import CC, build, exported, finished, needs_compiler, with_driver

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
    program, library = exported(model.SerializeToString(), tmp_path / "out", "resnet50")
    onnx.save(model, tmp_path / "resnet50.onnx")
    program.save(tmp_path / "resnet50.mxr", embed_library=True)
    first, *others = re.findall(rf"^```{language}\n(.*?)^```$", PAGE.read_text(), re.MULTILINE | re.DOTALL)
    assert len(others) == (2 if language == "cpp" else 0)
    block = first + "".join(f"{{\n{other}}}\n" for other in others)
    includes = re.findall(r"^#include.*\n", block, re.MULTILINE)
    source = tmp_path / f"page.{language}"
    body = block.replace("".join(includes), "")
    source.write_text("".join(includes) + BEFORE[language] + "int main(void) {\n" + body + "return 0; }\n")
    if language == "cpp":
        executable = build(source, tmp_path / "out" / "include", tmp_path / "page")
    else:
        executable = tmp_path / "page"
        flags = [f"-I{tmp_path / 'out' / 'include'}", f"-Wl,-rpath,{library.parent}"]
        finished([CC, *flags, source, library, "-o", executable])
    finished([executable], cwd=tmp_path, env=with_driver())
