"""Trials of distributions in new environments, outside of this tree."""

from __future__ import annotations

import json
import os
import platform
import subprocess
from pathlib import Path

from .starts import starts
from .wheels import TAGS

__all__ = ["CLEAN", "new_environment", "try_wheels"]

CLEAN = {name: value for name, value in os.environ.items() if not name.startswith("PYTHON")}
"""The environment without Python's variables, by which pip would find packages elsewhere and install none."""

SMOKE = """
import pathlib, subprocess, sys
import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper
import mgx_numba
import mgx_numba.session as onnxruntime

home = pathlib.Path(mgx_numba.__file__).parent
assert "site-packages" in home.parts, home
assert (home / "py.typed").exists() and list((home / "codegen" / "tuning" / "shipped").glob("*.json"))
rng = np.random.default_rng(0)
w, d = rng.standard_normal((8, 3, 3, 3)).astype("float32"), rng.standard_normal((8, 5)).astype("float32")
nodes = [
    helper.make_node("Conv", ["x", "w"], ["c"], pads=[1, 1, 1, 1]), helper.make_node("Relu", ["c"], ["r"]),
    helper.make_node("GlobalAveragePool", ["r"], ["g"]), helper.make_node("Flatten", ["g"], ["f"]),
    helper.make_node("MatMul", ["f", "d"], ["m"]), helper.make_node("Softmax", ["m"], ["y"]),
]
info = helper.make_tensor_value_info
graph = helper.make_graph(
    nodes, "g", [info("x", TensorProto.FLOAT, ["n", 3, 16, 16])], [info("y", TensorProto.FLOAT, ["n", 5])],
    [numpy_helper.from_array(w, "w"), numpy_helper.from_array(d, "d")],
)
onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)]), "model.onnx")
program = mgx_numba.parse_onnx("model.onnx")
x = rng.random((2, 3, 16, 16)).astype("float32")
expected = program.clone().compile("ref").run({"x": x})[0]
np.testing.assert_allclose(program.compile("cpu").run({"x": x})[0], expected, rtol=1e-4, atol=1e-6)
program.save("model.mxr")
found = onnxruntime.InferenceSession("model.mxr").run(["y"], {"x": x})[0]
np.testing.assert_allclose(found, expected, rtol=1e-4, atol=1e-6)
driver = pathlib.Path(sys.executable).parent / "mgx-numba-driver"
batch = ["--batch", "2"]
for command in (["--version"], ["verify", "model.onnx", *batch], ["perf", "model.mxr", *batch, "-n", "2"]):
    subprocess.run([driver, *command], check=True)
"""
"""A user's first steps, run with ``-I``."""


def new_environment(python: str, home: Path) -> Path:
    """Make a virtual environment, and return its interpreter."""
    subprocess.run([python, "-m", "venv", str(home)], check=True, env=CLEAN)
    return home / "bin" / "python"


def try_wheels(python: str, pure: Path, folder: Path, numba: str = "") -> list[str]:
    """Install the wheels of a folder for an interpreter, and run `SMOKE` and the driver's ``doctor``.

    The pure wheel is installed first, with its dependencies. Then pip chooses among all wheels of the folder; it must
    choose the wheel of this platform, if there is one.

    Args:
        python: the interpreter.
        pure: the pure wheel, beside which the others lie.
        folder: an empty folder for the environment.
        numba: version of Numba, with the llvmlite that it needs; empty for the newest that the wheel admits.

    Returns:
        A line for each wheel: what was tried, with versions; and a line for each network of `starts`.

    Raises:
        subprocess.CalledProcessError: a step failed.
        ValueError: pip chose another wheel, or ``doctor`` found a problem.
    """
    own = new_environment(python, folder / "venv")
    _pip(own, str(pure), *([f"numba=={numba}"] if numba else []))
    lines = [_tried(own, folder, "pure")]
    tag = next((tag for tag in TAGS.values() if tag.endswith(platform.machine())), None)
    if tag and list(pure.parent.glob(f"*-{tag}.whl")):
        options = ("--force-reinstall", "--no-deps", "--no-index", "--find-links", str(pure.parent))
        _pip(own, *options, pure.name.partition("-")[0])
        lines += [_tried(own, folder, tag), *starts(str(own), folder)]
    return lines


def _pip(own: Path, *arguments: str) -> None:
    command = [str(own), "-m", "pip", "install", "--quiet", "--disable-pip-version-check", *arguments]
    subprocess.run(command, check=True, env=CLEAN)


def _tried(own: Path, folder: Path, kind: str) -> str:
    """Run `SMOKE` and ``doctor`` with an empty cache folder."""
    cache = folder / f"cache-{kind}"
    environment = {"PATH": "/usr/bin:/bin", "HOME": str(folder), "MGX_CACHE_DIR": str(cache)}
    if kind == "pure":
        (folder / "smoke.py").write_text(SMOKE)
        command = [str(own), "-I", "smoke.py"]
        done = subprocess.run(command, cwd=folder, env=environment, check=False, capture_output=True, text=True)
        if done.returncode:
            raise ValueError(f"{kind}: {done.stderr[-2000:]}")
    done = subprocess.run(
        [str(own.parent / "mgx-numba-driver"), "doctor", "--json"],
        cwd=folder,
        env=environment,
        check=False,
        stdout=subprocess.PIPE,
        text=True,
    )
    report = json.loads(done.stdout)
    if done.returncode:
        raise ValueError(f"{kind}: {'; '.join(report['problems'])}")
    told = report["facts"]["target cpu"]
    if kind != "pure" and not told["shipped kernels"][:1].isdigit():
        raise ValueError(f"{kind}: shipped kernels: {told['shipped kernels']}")
    seconds = sum(model["compile_seconds"] for model in report["models"])
    return (
        f"{kind} wheel, {report['facts']['python']['version']}, mgx_numba {report['version']}: healthy; "
        f"{told['toolchain']}; shipped kernels: {told['shipped kernels']}; {len(report['models'])} models compiled "
        f"in {seconds:.0f} s"
    )
