"""Walks through guides of MIGraphX as a user would: `python -m tests.guides FOLDER [--out FILE]`.

Every code block and every command of every file in the folder (Markdown, HTML or plain text) is tried in order. Each
guide has one process and one scratch folder, with small models under the file names that the guide uses. The table
states whether each block works, and for blocks that ask for a GPU, whether they ran on one. Without a GPU the `cpu`
target stands in for it, and the table says so. C++ is compiled and run (`tests.guide_programs`); other blocks are
listed by kind. The exit status counts failures.
"""

from __future__ import annotations

import argparse
import ast
import contextlib
import functools
import html
import importlib
import inspect
import io
import itertools
import os
import re
import shlex
import sys
import tempfile
import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

import mgx_numba
from mgx_numba.targets.registry import missing
from tests.frontends.tf_support import Graph
from tests.guide_programs.programs import CppGuide
from tests.guide_programs.python_text import (
    restored,
    small_network,
    stand_in_for_opencv,
    stand_in_for_torchvision,
)

WORKS, ON_GPU, STOOD_IN, FAILS = "works", "works (gpu)", "works (cpu for gpu)", "FAILS"
NAMES = "works (names)"
_FENCE = re.compile(r"^\s*(```+)\s*([\w+-]*)\s*$")
_TAGS = re.compile(r"</?(?:p|strong|ol|ul|li|hr)\b[^>]*>")
_DRIVER = re.compile(r"(?:\S*/)?(?:migraphx|mgx-numba)-driver\s+")
_OTHERS = (
    "sudo ",
    "git ",
    "docker ",
    "mkdir ",
    "cmake",
    "make",
    "wget ",
    "source ",
    "./configure",
    "cp ",
    "tar ",
    "cd ",
)
"""Beginnings of commands that install MIGraphX or build its C++ example."""


@dataclass(frozen=True)
class Block:
    """A code block or a command: where it begins, its language ("" if the guide names none), and its text."""

    line: int
    language: str
    text: str

    @property
    def title(self) -> str:
        """First line that is neither empty nor a comment."""
        lines = [line.strip() for line in self.text.splitlines()]
        return next((line for line in lines if line and not line.startswith(("#", "//"))), "")[:60]


def blocks(text: str) -> list[Block]:
    """The blocks of a guide, in order."""
    if "<code>" in text:
        text = _unmarked(text)
    found: list[Block] = []
    fence, start, kept = "", 0, []
    for number, line in enumerate(text.splitlines(), 1):
        match = _FENCE.match(line)
        if match and not fence:
            fence, start, kept = match[2] or "-", number, []
        elif match and not match[2]:
            found.append(Block(start, fence.strip("-").lower(), "\n".join(kept)))
            fence = ""
        elif fence:
            kept.append(line)
        else:
            found += [Block(number, "bash", span) for span in re.findall(r"`([^`]+)`", line) if _is_command(span)]
    return found


def _unmarked(text: str) -> str:
    """The Markdown of a guide that is HTML; inline code may begin with a language, and headings may be comments."""
    text = re.sub(r"</?em>", "*", text)  # Markdown has taken what code multiplies for emphasis
    text = re.sub(r"<code>(\w+)\n(.*?)</code>", r"\n```\1\n\2\n```\n", text, flags=re.DOTALL)
    text = re.sub(r"<h1>(.*?)</h1>", r"# \1", text)
    text = re.sub(r"<code>(.*?)</code>", r"`\1`", text)
    return re.sub(r"(?m)([^\n])```$", r"\1\n```", html.unescape(_TAGS.sub("", text)))


def _is_command(span: str) -> bool:
    """Whether inline code is to be run, and does not just name a command of the driver."""
    words = _DRIVER.sub("", span).split()
    return bool(_DRIVER.match(span) and (len(words) > 1 or words[0].startswith("-"))) or span.startswith(
        ("export MIGRAPHX_", "torch.onnx.export(")
    )


def write_models(folder: Path) -> None:
    """Small models under the names that guides use."""
    for name, x, lens in (
        ("model.onnx", "input", ["n", 3, 224, 224]),
        ("inceptioni1.onnx", "x.1", [1, 3, 299, 299]),
        ("resnet50.onnx", "input", [1, 3, 224, 224]),
        ("ResNet50.onnx", "input", [1, 3, 224, 224]),
        ("Test.onnx", "input", ["n", 3, "h", "w"]),
    ):
        onnx.save(_network(x, lens), folder / name)
    with contextlib.suppress(ImportError):
        from PIL import Image

        Image.fromarray(np.random.default_rng(0).integers(0, 255, (240, 320, 3), np.uint8)).save(folder / "Test.jpg")
    with contextlib.suppress(ImportError):
        import torch

        net = small_network()
        torch.save(net, folder / "model.pt")
        torch.save(net.state_dict(), folder / "resnet50-19c8e357.pth")
    graph = Graph()
    graph.input("input", (-1, 224, 224, 3))
    graph.const("axes", np.array([1, 2], np.int32))
    graph.add("Relu", "relu", ["input"])
    graph.add("Mean", "output", ["relu", "axes"])
    (folder / "model.pb").write_bytes(graph.proto.SerializeToString())


def _network(name: str, lens: list[Any]) -> onnx.ModelProto:
    rng = np.random.default_rng(0)
    weights = {"w": rng.standard_normal((8, 3, 7, 7)) / 12, "d": rng.standard_normal((8, 10))}
    nodes = [
        helper.make_node("Conv", [name, "w"], ["c"], strides=[4, 4], pads=[3, 3, 3, 3]),
        helper.make_node("Relu", ["c"], ["r"]),
        helper.make_node("GlobalAveragePool", ["r"], ["g"]),
        helper.make_node("Flatten", ["g"], ["f"]),
        helper.make_node("MatMul", ["f", "d"], ["output"]),
    ]
    graph = helper.make_graph(
        nodes,
        "network",
        [helper.make_tensor_value_info(name, TensorProto.FLOAT, lens)],
        [helper.make_tensor_value_info("output", TensorProto.FLOAT, [lens[0], 10])],
        [numpy_helper.from_array(value.astype(np.float32), key) for key, value in weights.items()],
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=10)


class Walk:
    """The state of one guide's walk: the names that its blocks have defined so far."""

    def __init__(self) -> None:
        self.names: dict[str, Any] = {"__name__": "__main__", "migraphx": mgx_numba, "np": np}
        self.used_gpu = False
        self._cpp = CppGuide()

    def verdict(self, block: Block) -> tuple[str, str]:
        """Run a block; return its outcome and a remark."""
        self.used_gpu = False
        if block.language in ("python", "py"):
            if "torch" in block.text and find_spec("torch") is not None:
                self.names.setdefault("torch", importlib.import_module("torch"))
            elif "torch" in block.text and "migraphx" not in block.text:
                return "-", "of PyTorch, which is not installed: no name of ours"
            self.used_gpu = "cuda" in block.text
            return self._python(block.text)
        if block.language in ("bash", "sh", "console", "shell") or _is_command(block.text.strip()):
            return self._commands(block.text)
        if block.language in ("c++", "cpp"):
            if "migraphx" not in block.text:
                return "-", "no name of MIGraphX"
            self.used_gpu = bool(re.search(r"\bgpu\b", block.text))
            return self._built(lambda: self._cpp.block(block.text))
        if block.language == "cmake":
            return self._built(lambda: self._cpp.cmake(block.text))
        return "-", "printed, no code"

    def _built(self, build: Callable[[], str]) -> tuple[str, str]:
        try:
            why = build()
        except RuntimeError as error:
            return FAILS, str(error)
        return self._worked(), why

    def _worked(self) -> str:
        return (STOOD_IN if missing("gpu") else ON_GPU) if self.used_gpu else WORKS

    def _python(self, text: str) -> tuple[str, str]:
        said = []
        try:
            ast.parse(text)
        except SyntaxError as error:
            unknown = unknown_names(text)
            if unknown:
                return FAILS, f"no {', '.join(unknown)} (the text is no Python: {error.msg})"
            text, count = restored(text)
            said.append(f"lines mended: {count}")
        try:
            code = compile(ast.parse(text), "<guide>", "exec")
        except SyntaxError as error:
            return NAMES, f"the text is no Python ({error.msg}); all names of ours in it exist"
        if "install_as_onnxruntime" in text:  # of a process that has not imported the other one
            with _own_modules("onnxruntime"):
                return self._tried(lambda: exec(code, self.names))
        with contextlib.ExitStack() as stack:
            if "cv2" in text and find_spec("cv2") is None:
                said.append("OpenCV stood in for")
                stack.enter_context(_own_modules("cv2"))
                sys.modules["cv2"] = stand_in_for_opencv()
            if "torchvision" in text:
                said.append("torchvision stood in for")
                stack.enter_context(_own_modules("torchvision"))
                module = stand_in_for_torchvision()
                sys.modules.update({"torchvision": module, "torchvision.models": module.models})
            verdict, why = self._tried(lambda: exec(code, self.names))
        if "torchvision" in text:
            write_models(Path())  # the true networks' files have the names that the guide goes on with
        return verdict, why or "; ".join(said)

    def _commands(self, text: str) -> tuple[str, str]:
        if re.search(r"(?m)^cmake \.\.$", text) and Path("CMakeLists.txt").exists():
            return self._built(lambda: self._cpp.build(text))
        verdicts = []
        for line in filter(None, map(str.strip, text.splitlines())):
            if _DRIVER.match(line):
                verdicts.append(self._driver(_DRIVER.sub("", line)))
            elif line.startswith("export MIGRAPHX_"):
                name, _, value = line.removeprefix("export ").partition("=")
                os.environ[name] = value
                verdicts.append((WORKS, "set for what follows"))
            elif line.startswith("torch."):
                verdicts.append(("-", "of PyTorch"))
            elif line.startswith(_OTHERS) or re.match(r"export |\./\w+$", line):
                verdicts.append(("-", "installs MIGraphX, or builds its C++ example"))
            else:
                verdicts.append(("-", "printed, no command"))
        failed = [v for v in verdicts if v[0] == FAILS]
        return failed[0] if failed else next((v for v in verdicts if v[0] != "-"), verdicts[0])

    def _driver(self, line: str) -> tuple[str, str]:
        from mgx_numba.driver.main import main

        if "[" in line:  # a synopsis
            command, *words = re.findall(r"[\w-]+", line)
            listed = self._output(lambda: main([command, "--help"]))
            lacking = [w for w in words if w.startswith("-") and not re.search(rf"(?<![\w-]){w}(?![\w-])", listed)]
            return (FAILS, f"{command} has no {', '.join(lacking)}") if lacking else (WORKS, "all flags exist")

        def run() -> None:
            words = shlex.split(line)
            if not {"--cpu", "--ref", "--gpu"} & set(words) and words[0] in ("perf", "run", "compile"):
                self.used_gpu = True
                words += [] if missing("gpu") else ["--gpu"]  # the default of MIGraphX's driver
            status = main(words)
            if status:
                raise RuntimeError(f"exit status {status}")

        return self._tried(run)

    def _output(self, run: Callable[[], Any]) -> str:
        out = io.StringIO()
        with contextlib.redirect_stdout(out), contextlib.suppress(SystemExit):
            run()
        return out.getvalue()

    def _tried(self, run: Callable[[], Any]) -> tuple[str, str]:
        try:
            with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(io.StringIO()) as told:
                run()
        except ImportError as error:
            return "-", f"needs {error.name}, which is not installed"
        except SystemExit as left:
            return (WORKS, "") if not left.code else (FAILS, told.getvalue().strip().splitlines()[-1])
        except Exception as error:
            last = (told.getvalue().strip().splitlines() or [""])[-1]
            return FAILS, f"{type(error).__name__}: {error} {last}".strip()
        return self._worked(), ""

    @contextlib.contextmanager
    def surroundings(self) -> Iterator[None]:
        """The scratch folder, the name ``migraphx``, and what stands in for a GPU."""
        genuine = mgx_numba.get_target

        def get_target(name: str) -> Any:
            self.used_gpu |= name == "gpu"
            return genuine("cpu" if name == "gpu" and missing("gpu") else name)

        with contextlib.ExitStack() as stack:
            folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
            before = Path.cwd()
            os.chdir(folder)
            stack.callback(os.chdir, before)
            write_models(folder)
            stack.enter_context(mock.patch.dict(os.environ))
            stack.enter_context(warnings.catch_warnings())
            warnings.simplefilter("ignore")
            stack.enter_context(_own_modules("migraphx"))
            mgx_numba.install_as_migraphx()
            stack.enter_context(mock.patch.object(mgx_numba, "get_target", get_target))
            stack.enter_context(mock.patch.object(mgx_numba, "get_gpu_context", lambda: get_target("gpu")))
            _with_old_defaults(stack)
            if missing("gpu"):
                _without_cuda(stack, self)
                _without_devices(stack, self)
            yield


@contextlib.contextmanager
def _own_modules(package: str) -> Iterator[None]:
    """Forget a package's modules inside of the block, and put them back after it.

    Modules of other packages that are imported meanwhile stay: they can be imported only once.
    """

    def named() -> list[str]:
        return [name for name in sys.modules if name.partition(".")[0] == package]

    before = {name: sys.modules.pop(name) for name in named()}
    try:
        yield
    finally:
        for name in named():
            del sys.modules[name]
        sys.modules.update(before)


def _with_old_defaults(stack: contextlib.ExitStack) -> None:
    """PyTorch, if it is installed, has the defaults of the time when guides were written.

    It reads whole modules from files, and exports by tracing, which needs no package ``onnxscript``.
    """
    with contextlib.suppress(ImportError):
        import torch

        load = functools.partial(torch.load, weights_only=False)
        stack.enter_context(mock.patch.object(torch, "load", load))
        export = functools.partial(torch.onnx.export, dynamo=False)
        stack.enter_context(mock.patch.object(torch.onnx, "export", export))


def _without_cuda(stack: contextlib.ExitStack, walk: Walk) -> None:
    """PyTorch's tensors and modules stay where they are, if it is installed."""
    try:
        import torch
    except ImportError:
        return

    def stay(self: Any, *_: Any) -> Any:
        walk.used_gpu = True
        return self

    for kind in (torch.Tensor, torch.nn.Module):
        genuine = kind.to

        def to(self: Any, *given: Any, genuine: Any = genuine, **named: Any) -> Any:
            return stay(self) if "cuda" in map(str, given) else genuine(self, *given, **named)

        stack.enter_context(mock.patch.object(kind, "cuda", stay))
        stack.enter_context(mock.patch.object(kind, "to", to))
    stack.enter_context(mock.patch.object(torch.cuda, "synchronize", lambda: None))


def _without_devices(stack: contextlib.ExitStack, walk: Walk) -> None:
    """Keep data that is copied to a device on the host."""

    def stay(tensor: Any, *_: Any) -> Any:
        walk.used_gpu = True
        return mgx_numba.argument(tensor)

    for name in ("allocate_gpu", "from_gpu", "to_gpu"):
        stack.enter_context(mock.patch.object(mgx_numba, name, stay))
    stack.enter_context(mock.patch.object(mgx_numba, "gpudata_to_argument", mgx_numba.argument_from_pointer))
    stack.enter_context(mock.patch.object(mgx_numba, "gpu_sync", lambda: None))


def unknown_names(text: str) -> list[str]:
    """Functions, methods and keywords of this package that a text uses and that do not exist."""
    text = re.sub(r"#.*", "", text)
    found = []
    for owner, holder in (("migraphx", mgx_numba), ("model", mgx_numba.program)):
        for name, end, rest in re.findall(rf"\b{owner}\.(\w+)(?: (\w+)(?=\())?(\([^()]*)?", text, re.ASCII):
            member = getattr(holder, name, None) or getattr(holder, name + end, None)  # a line's end may break a name
            if member is None:
                found.append(f"{owner}.{name}")
                continue
            parameters = inspect.signature(member).parameters
            open_ended = any(p.kind is p.VAR_KEYWORD for p in parameters.values())
            words = re.findall(r"(\w+)\s*=(?!=)", rest)
            found += [f"{owner}.{name}({word}=)" for word in words if not open_ended and word not in parameters]
    return list(dict.fromkeys(found))


def rows_of(path: Path) -> Iterator[tuple[str, ...]]:
    """The table of one guide: name, line, language, first words, verdict and reason of each block, as it was tried."""
    walk = Walk()
    with walk.surroundings():
        for block in blocks(path.read_text(encoding="utf-8")):
            verdict, why = walk.verdict(block)
            kind = block.language or "text"
            yield path.stem[:8], str(block.line), kind, block.title, verdict, why[:110]


def _line(row: tuple[str, ...]) -> str:
    return "| " + " | ".join(cell.replace("|", "/") for cell in row) + " |"


def main(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--out", type=Path, help="write the table here, too")
    given = parser.parse_args(arguments)
    out = given.out.resolve() if given.out else None
    paths = sorted(p for p in given.folder.resolve().iterdir() if p.is_file())
    lines, failed = [_line(("guide", "line", "kind", "begins", "verdict", "why"))], 0
    print(lines[0], flush=True)
    for row in itertools.chain.from_iterable(map(rows_of, paths)):
        failed += row[4] == FAILS
        lines.append(_line(row))
        print(lines[-1], flush=True)
    if out:
        out.write_text("\n".join(lines) + "\n", encoding="utf-8")
    return failed


if __name__ == "__main__":
    sys.exit(min(main(sys.argv[1:]), 100))
