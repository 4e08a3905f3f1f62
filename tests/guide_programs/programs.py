"""Compiles the C++ blocks of a guide against this package's headers, and runs them in the guide's folder.

A block with a ``main`` is a program as it is; another one is put into a ``main`` behind the names that guides have
defined by then. Misprints are mended, and what was mended is told. OpenCV is stood in for. The compiler's process is
this Python's driver, with ``cpu`` standing for ``gpu`` where there is no GPU.
"""

from __future__ import annotations

import re
import shutil
import subprocess
from pathlib import Path

from mgx_numba.runtime.cpu.library import CPP_PREFIX
from mgx_numba.targets.registry import missing
from tests.library.support import CXX, with_driver

__all__ = ["CppGuide", "mended"]

_HERE = Path(__file__).parent
_SECONDS = 300.0  # of a compiler, or of a program that starts Python, on a machine that does much else
_MISPRINTS = {
    "float type": "float_type",
    "compile—_options": "compile_options",
    "{fflatten}": "{flatten}",
    "i<numberofoutput": "i<numberOfOutput",
    "1 27.5": "127.5",
    "{32,3,224,224}\n": "{32,3,224,224};\n",
    'printf("%d,",resultData[i])': 'printf("%f,",resultData[i])',
}
"""Misprints of guides and their corrections: the compiler refuses the misprint, or its numbers would not be seen."""
_BROKEN_COMMENT = re.compile(
    r"(//[^\n]*)\n[ \t]*((?:\(N, C, H, W\)|[^\x00-\x7f](?:[^\n]*[^\x00-\x7f])?)(?: ?\(?N, ?C, ?H, ?W\)?)?)"
)
"""A comment that goes on in the next line, up to its last character that is not ASCII."""
_EMPTY = re.compile(r"(?m)^(?:cv::Mat|migraphx::argument) \w+;\s*//")
"""A value that a guide only talks of: what is done to it is compiled, and not run."""
_USES = re.compile(r'"([\w.]+\.mxr)"')
_BEFORE = """#include <opencv2/opencv.hpp>
#include <migraphx/migraphx.hpp>
#include <iostream>
using namespace cv;
using namespace cv::dnn;
"""
_NAMES = """    migraphx::program net = migraphx::parse_onnx("resnet50.onnx");
    const std::string inputName = net.get_parameter_shapes().begin()->first;
    const migraphx::shape inputShape = net.get_parameter_shapes()[inputName];
    const int W = 224, H = 224;
    (void)W, (void)H;
"""


def mended(text: str) -> tuple[str, int]:
    """Return a block with its misprints corrected, and the number of corrections."""
    count = 0
    for wrong, right in _MISPRINTS.items():
        count += text.count(wrong)
        text = text.replace(wrong, right)
    text, broken = _BROKEN_COMMENT.subn(r"\1\2\n", text)
    return text, count + broken


class CppGuide:
    """The C++ code of one guide; the current folder has its models."""

    def __init__(self) -> None:
        self._functions = ""
        self._program = ""
        self._driver = "tests.guide_programs.driver" if missing("gpu") else "mgx_numba.driver.main"

    def block(self, text: str) -> str:
        """Compile and run a block; what is to be said of it.

        Raises:
            RuntimeError: it does not compile, or its program fails; with the first error.
        """
        text, count = mended(text)
        said = [f"misprints mended: {count}"] if count else []
        if "opencv" in text or "cv::" in text or "Mat " in text:
            said.append("OpenCV stood in for")
        main = "int main(" in text
        if not main and re.match(r"[\w:]+ \w+\([^;)]*\)\s*\{", text):
            self._functions += text + "\n"
            return "; ".join(["a function for what follows", *said])
        for name in _USES.findall(text):
            self._provide(name, text)
        uses_functions = main and self._functions and "#include" not in text
        source = (_BEFORE + self._functions if uses_functions else "") + text
        if main:
            self._program = source
        else:
            source = f"{_BEFORE}int main()\n{{\n{_NAMES}    {{\n{text}\n    }}\n}}\n"
        program = self._build(source)
        if not main and _EMPTY.search(text):
            return "; ".join(["compiled", *said])
        self._run([str(program)])
        return "; ".join(said)

    def cmake(self, text: str) -> str:
        """Configure a ``CMakeLists.txt`` for the program before it, under the name that it has there.

        Raises:
            RuntimeError: there is no program before it, or CMake fails.
        """
        named = re.search(r"set ?\(EXAMPLE (\w+)\)", text)
        if named is None or not self._program:
            raise RuntimeError("no program for it comes before")
        if shutil.which("cmake") is None:
            return "not run: there is no CMake"
        Path(f"{named[1]}.cpp").write_text(self._program)
        Path("CMakeLists.txt").write_text(text)
        self._run(["cmake", "-S", ".", "-B", "configured"])
        return ""

    def build(self, text: str) -> str:
        """Run the commands that build and start the program of the ``CMakeLists.txt``, in a shell.

        Raises:
            RuntimeError: one of them fails.
        """
        if shutil.which("cmake") is None or shutil.which("make") is None:
            return "not run: there is no CMake"
        started = re.sub(r"(?m)^\./", "ln -s ../*.onnx .\n./", text)  # where programs look for models
        self._run(["sh", "-e", "-c", started])
        return ""

    def _provide(self, name: str, text: str) -> None:
        """The file that a program loads, where the guide does not make it."""
        if not Path(name).exists() and f'save(net, "{name}")' not in text:
            body = f'{_NAMES}    net.compile(migraphx::cpu::target());\n    migraphx::save(net, "{name}");\n'
            self._run([str(self._build(f"#include <migraphx/migraphx.hpp>\nint main()\n{{\n{body}}}\n"))])

    def _build(self, source: str) -> Path:
        if CXX is None:
            raise RuntimeError("there is no C++ compiler")
        Path("block.cpp").write_text(source)
        include = [f"-I{CPP_PREFIX / 'include'}", f"-I{_HERE}"]
        self._run([CXX, "-std=c++14", "-w", *include, "block.cpp", "-o", "block", "-ldl", "-pthread"])
        return Path("block").absolute()

    def _run(self, command: list[str]) -> None:
        environment = {**with_driver(self._driver), "CMAKE_PREFIX_PATH": str(CPP_PREFIX)}
        done = subprocess.run(command, capture_output=True, env=environment, timeout=_SECONDS, check=False)
        if done.returncode:
            told = (done.stderr or done.stdout).decode(errors="replace").strip().splitlines()
            wrong = next((line for line in told if "error" in line), told[-1] if told else "")
            raise RuntimeError(f"{Path(command[0]).name} ended with {done.returncode}: {wrong}")
