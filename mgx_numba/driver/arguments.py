"""Command-line flags that several commands share, with MIGraphX's names."""

from __future__ import annotations

import argparse
import ast
import functools
import os
import re
import shlex
from collections.abc import Sequence
from typing import Any

from ..errors import OptionError
from ..targets.options import FLOAT32_PRECISIONS
from ..targets.registry import DEFAULT, target_names
from .measure import Repeats

FILE_TYPES = {".onnx": "onnx", ".pb": "tf", ".json": "json", ".py": "python"}
"""Type of a model file by its extension; files with other extensions are .mxr files."""

_FLAGS = {
    "batch_size": "--batch",
    "default_dim_value": "--batch",
    "default_dyn_dim_value": "--default-dyn-dim",
    "dim_params": "--dim-param",
    "float32_matmul_precision": "--float32-matmul-precision",
    "map_dyn_input_dims": "--dyn-input-dim",
    "map_input_dims": "--input-dim",
    "num_threads": "--num-threads",
    "output_names": "--output-names",
    "problem_cache": "--problem-cache",
    "tune_budget": "--tune-budget",
}
_ENDS = (*FILE_TYPES, ".mxr")
_NAME = r"""(?:'(?:[^'\\]|\\.)*'|"(?:[^"\\]|\\.)*")"""
"""Pattern of a string literal of Python, as ``repr`` writes it."""


def in_flags(message: str) -> str:
    """Replace names of Python options in a message by the corresponding flags."""
    for option, flag in _FLAGS.items():
        message = re.sub(rf"\b{option}\b", flag, message)
    return message


def in_words(message: str) -> str:
    """Translate the ``parse_onnx`` options that an error message suggests into command-line flags."""
    what, given, advice = message.partition("; give parse_onnx ")
    for option in ("dim_params", "map_input_dims", "map_dyn_input_dims") if given else ():
        advice = re.sub(rf"\b{option}=\{{((?:{_NAME}|[^'\"}}])*)\}}", functools.partial(_words, _FLAGS[option]), advice)
    return f"{what}; give {advice}" if given else message


def _words(flag: str, entries: re.Match[str]) -> str:
    """Return a flag with its words, from the entries of a dictionary of lengths or of lists of lengths."""
    words = [flag]
    for name, value in re.findall(rf"({_NAME}): (\[.*?\]|\d+)", entries[1]):
        ranges = re.sub(r"dynamic_dimension\((\d+), (\d+)\)", r"{min:\1,max:\2}", value).replace(" ", "")
        words += (
            shlex.quote(f"@{ast.literal_eval(name)}"),
            (shlex.quote(ranges) if "{" in ranges else value.strip("[]").replace(",", "")),
        )
    return " ".join(words)


class _Words(argparse.Action):
    """Action of a flag that takes any number of words; the namespace's ``words`` lists the words of each use."""

    def __call__(
        self, parser: argparse.ArgumentParser, namespace: argparse.Namespace, values: Any, option: str | None = None
    ) -> None:
        setattr(namespace, self.dest, [*getattr(namespace, self.dest), *values])
        namespace.words = [*getattr(namespace, "words", ()), (option, self.dest, list(values))]


_WORDS: dict[str, Any] = {"nargs": "+", "default": [], "action": _Words}


def file_among_words(args: argparse.Namespace) -> None:
    """Recover the model file from the words of a flag before it, as in ``--fill0 a b model.onnx``.

    The file is the last of several words, not the value of an ``@name``, and exists or has the extension of a model
    file. Nothing is changed if a file was given, or if there is not exactly one candidate.
    """
    uses: list[tuple[str, str, list[str]]] = getattr(args, "words", [])
    if getattr(args, "file", None) is not None or getattr(args, "file_type", None) == "test":
        return
    found = [number for number, (_, _, words) in enumerate(uses) if _may_end_with_file(words)]
    found = [n for n in found if os.path.isfile(uses[n][2][-1])] or found
    if len(found) != 1:
        return
    _, dest, words = uses[found[0]]
    args.file = words.pop()
    setattr(args, dest, [word for _, other, rest in uses if other == dest for word in rest])


def _may_end_with_file(words: Sequence[str]) -> bool:
    if len(words) < 2 or words[-1].startswith("@") or words[-2].startswith("@"):
        return False
    return words[-1].lower().endswith(_ENDS) or os.path.isfile(words[-1])


def _batches(text: str) -> int | list[int]:
    """Return a length, or the lengths of a list with commas."""
    return [int(word) for word in text.split(",")] if "," in text else int(text)


def add_loader(parser: argparse.ArgumentParser, several_batches: bool = False) -> None:
    """Add the model file, and the flags for reading and editing it.

    Args:
        several_batches: ``--batch`` also takes several lengths, which are a list.
    """
    group = parser.add_argument_group("model")
    group.add_argument("file", nargs="?", help="model file; its type follows from its name")
    kind = group.add_mutually_exclusive_group()
    add_type: dict[str, Any] = {"dest": "file_type", "action": "store_const"}
    kind.add_argument("--onnx", const="onnx", help="the file is an ONNX model", **add_type)
    kind.add_argument("--tf", const="tf", help="the file is a frozen TensorFlow graph", **add_type)
    kind.add_argument("--migraphx", const="msgpack", help="the file is an .mxr file", **add_type)
    kind.add_argument("--migraphx-json", const="json", help="the file is an .mxr file in JSON", **add_type)
    kind.add_argument("--test", const="test", help="a small matrix product in place of a file", **add_type)
    group.add_argument(
        "--trust-objects", action="store_true", help="use the machine code in an .mxr file, which can do anything"
    )
    order = group.add_mutually_exclusive_group()
    add_order: dict[str, Any] = {"dest": "is_nhwc", "action": "store_const"}
    order.add_argument("--nhwc", const=True, help="a TensorFlow model has channels last (default)", **add_order)
    order.add_argument("--nchw", const=False, help="its images are taken and given as they are in it", **add_order)
    batch = _batches if several_batches else int
    group.add_argument("--batch", type=batch, metavar="N", help="length of dimensions that the model leaves open")
    group.add_argument("--input-dim", metavar="WORD", help="dimensions of inputs: @name d1 d2 ...", **_WORDS)
    group.add_argument("--dim-param", metavar="WORD", help="symbolic dimensions: @name d or {min:a,max:b}", **_WORDS)
    group.add_argument("--dyn-input-dim", metavar="WORD", help="ranges of inputs: @name [{min:a,max:b},d2]", **_WORDS)
    group.add_argument("--default-dyn-dim", metavar="RANGE", help="range of open dimensions: {min:a,max:b}")
    group.add_argument("--skip-unknown-operators", action="store_true", help="keep unknown operators as they are")
    group.add_argument("--strict", action="store_true", help="refuse what an ONNX file has that ONNX forbids")
    group.add_argument("--debug-symbols", action="store_true", help="keep the names of the model's nodes")
    group.add_argument("--output-names", metavar="NAME", help="results in place of the model's", **_WORDS)
    group.add_argument("-t", "--trim", type=int, default=0, metavar="N", help="leave out the last N instructions")
    group.add_argument(
        "-s", "--trim-size", type=int, default=0, metavar="N", help="with --trim: keep only N instructions before"
    )
    group.add_argument("-O", "--optimize", action="store_true", help="apply the target-independent optimisations")
    group.add_argument("--replace-literals", action="store_true", help="make parameters of the constants")
    group.add_argument(
        "--strip-context", action="store_true", help="forget for what target an .mxr file was compiled, and how"
    )
    group.add_argument("--mlir", action="store_true", help="of MIGraphX: without effect, since there is no MLIR here")
    group.add_argument("-p", "--apply-pass", metavar="PASS", help="apply passes by name", **_WORDS)


def add_output(parser: argparse.ArgumentParser) -> None:
    """Add the flags for output form and output file."""
    group = parser.add_argument_group("output")
    form = group.add_mutually_exclusive_group()
    add_form: dict[str, Any] = {"dest": "form", "action": "store_const"}
    form.add_argument("--text", const="text", help="MIGraphX's text form (default)", **add_form)
    form.add_argument("-g", "--graphviz", const="graphviz", help="a Graphviz graph", **add_form)
    form.add_argument("--python", "--py", const="python", help="Python source that builds the program", **add_form)
    form.add_argument("--cpp", const="cpp", help="C++ source that builds the program with MIGraphX", **add_form)
    form.add_argument("--netron", const="netron", help="an ONNX model, for the viewer Netron", **add_form)
    form.add_argument("--json", const="json", help="an .mxr file in JSON", **add_form)
    form.add_argument(
        "--binary",
        const="binary",
        help="an .mxr file (default with --output, unless its name says otherwise)",
        **add_form,
    )
    group.add_argument("--brief", action="store_true", help="leave attributes and shapes out of the graph")
    group.add_argument("-o", "--output", metavar="FILE", help="write to a file")
    group.add_argument("--embed-objects", action="store_true", help="add the compiled program's code to an .mxr file")
    group.add_argument("--embed-library", action="store_true", help="add its library for C++ to an .mxr file")


class _Idle(argparse.Action):
    """Action of a flag without effect; the namespace's ``idle`` lists the flags that were given."""

    def __call__(
        self, parser: argparse.ArgumentParser, namespace: argparse.Namespace, values: Any, option: str | None = None
    ) -> None:
        namespace.idle = [*namespace.idle, option]


def add_idle_output(parser: argparse.ArgumentParser) -> None:
    """Accept the flags of `add_output` in a command that reads a model and writes none, as MIGraphX's driver does."""
    if not any(action.dest == "file_type" for action in parser._actions):
        return
    writing = argparse.ArgumentParser(add_help=False)
    add_output(writing)
    for action in writing._actions:
        new = [option for option in action.option_strings if option not in parser._option_string_actions]
        if new and not action.dest.startswith("embed"):  # not of MIGraphX
            parser.add_argument(*new, action=_Idle, nargs=action.nargs, dest="idle", default=[], help=argparse.SUPPRESS)


def add_inputs(parser: argparse.ArgumentParser) -> None:
    """Add the flags for parameter values, which by default are random and depend only on name and shape."""
    group = parser.add_argument_group("inputs")
    group.add_argument("--fill0", metavar="NAME", help="parameters filled with zeros", **_WORDS)
    group.add_argument("--fill1", metavar="NAME", help="parameters filled with ones", **_WORDS)
    group.add_argument(
        "--load-arg",
        metavar="WORD",
        help="saved arguments: @name file (.npy, .npz, or what argument.save writes)",
        **_WORDS,
    )


def add_iterations(parser: argparse.ArgumentParser, usual: int) -> None:
    """Add the flags for the number of runs."""
    parser.add_argument("-n", "--iterations", type=int, default=usual, metavar="N", help=f"runs (default {usual})")
    text = "run for at least so many seconds, if --iterations take less"
    parser.add_argument("--duration", type=float, default=0.0, metavar="SECONDS", help=text)
    parser.add_argument("--warmup", type=int, default=1, metavar="N", help="runs before, not timed (default 1)")


def checked_repeats(args: argparse.Namespace) -> Repeats:
    """Return the number of runs that the flags request.

    Raises:
        OptionError: a number is too small.
    """
    if args.iterations < 1:
        raise OptionError(f"--iterations is {args.iterations}, expected at least 1")
    if not 0 <= args.duration < float("inf"):
        raise OptionError(f"--duration is {args.duration:g}, expected seconds from 0 on")
    if args.warmup < 0:
        raise OptionError(f"--warmup is {args.warmup}, expected a number from 0 on")
    return Repeats(args.iterations, args.duration, args.warmup)


def add_compile(parser: argparse.ArgumentParser) -> None:
    """Add the flags for target and compilation; none has a default, so that a compiled file keeps its own options."""
    group = parser.add_argument_group("compilation", "a file that was saved compiled keeps its target and options")
    target = group.add_mutually_exclusive_group()
    for name in dict.fromkeys((DEFAULT, *target_names(), "gpu")):  # --gpu always exists; its error names the cause
        text = f"compile for the {name} target" + (" (default)" if name == DEFAULT else "")
        target.add_argument(f"--{name}", dest="target", action="store_const", const=name, help=text)
    group.add_argument("--enable-offload-copy", action="store_true", help="copy inputs and results (GPU)")
    group.add_argument("--disable-fast-math", action="store_true", help="keep the rounding of every operation")
    group.add_argument(
        "--float32-matmul-precision",
        choices=FLOAT32_PRECISIONS,
        help="of products: as float32 has them, three of fewer bits, or one (default: by fast math)",
    )
    group.add_argument(
        "--no-plan-cache",
        action="store_true",
        help="neither look for the compiled program in the cache folder nor keep it there",
    )
    group.add_argument("--exhaustive-tune", action="store_true", help="measure every kernel choice")
    group.add_argument("--tune-budget", type=float, metavar="S", help="seconds that measuring may take (default: any)")
    group.add_argument(
        "--problem-cache", action="append", default=[], metavar="FILE", help="tuning records, JSON or SQLite"
    )
    group.add_argument("--num-threads", type=int, metavar="N", help="threads of a run (default: 0, which takes all)")
    for name in ("fp16", "bf16", "int8", "fp8", "int4-weights"):
        group.add_argument(f"--{name}", action="store_true", help=f"quantise to {name} first")
    group.add_argument(
        "--calibration",
        action="append",
        default=[],
        metavar="FILE",
        help="a batch of inputs by name (.npz): int8, accuracy",
    )
    group.add_argument(
        "--accuracy",
        metavar="X",
        help="what --int8, --fp8, --fp16 or --bf16 may lose, as 0.5%%: layers that lose most stay as they are",
    )
    group.add_argument("--quantization-report", action="store_true", help="print what became of each layer")
