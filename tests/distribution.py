"""The released files work in empty environments: `python -m tests.distribution [--out FOLDER] [PYTHON ...]`.

Builds a source distribution of this tree and a wheel of that, looks at what is in them, and for each interpreter
(default: this one) installs the wheel into an environment of its own and runs a small model there, outside of the tree.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import tarfile
import tempfile
import zipfile
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
PACKAGE = "mgx_numba"

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
print("smoke test passed:", mgx_numba.__version__, sys.version.split()[0])
"""


def package_files() -> set[str]:
    """Files of the package that are under version control."""
    listed = subprocess.run(["git", "ls-files", PACKAGE], cwd=ROOT, check=True, capture_output=True, text=True).stdout
    return set(listed.split())


def build(out: Path) -> Path:
    """Build both distributions into a folder; the wheel.

    Raises:
        ValueError: a file of the package is in neither, or the source distribution lacks tests or documents.
    """
    subprocess.run(
        [sys.executable, "-m", "build", "--outdir", str(out), str(ROOT)], check=True, stdout=subprocess.DEVNULL
    )
    (source,), (wheel,) = out.glob("*.tar.gz"), out.glob("*.whl")
    with tarfile.open(source) as archive:
        in_source = {name.partition("/")[2] for name in archive.getnames()}
    with zipfile.ZipFile(wheel) as content:
        in_wheel = set(content.namelist())
    wanted = package_files()
    others = {"README.md", "CHANGELOG.md", "LICENSE", "setup.cfg", "tests/__main__.py", "docs/architecture.md"}
    for archive_name, missing in ((source.name, (wanted | others) - in_source), (wheel.name, wanted - in_wheel)):
        if missing:
            raise ValueError(f"{archive_name} lacks {', '.join(sorted(missing))}")
    stray = {name.split("/")[0] for name in in_wheel} - {PACKAGE, wheel.name.rsplit("-", 3)[0] + ".dist-info"}
    if stray:
        raise ValueError(f"{wheel.name} has {', '.join(sorted(stray))} besides the package")
    return wheel


def smoke(python: str, wheel: Path, folder: Path) -> str:
    """Install a wheel into a new environment and run a small model there; the last line that was printed."""
    home = folder / "venv"
    subprocess.run([python, "-m", "venv", str(home)], check=True)
    own = home / "bin" / "python"
    subprocess.run([own, "-m", "pip", "install", "--quiet", str(wheel)], check=True)
    environment = {"PATH": "/usr/bin:/bin", "HOME": str(folder), "MGX_CACHE_DIR": str(folder / "cache")}
    command = [own, "-I", "-c", SMOKE]
    return subprocess.run(
        command, cwd=folder, env=environment, check=True, stdout=subprocess.PIPE, text=True
    ).stdout.splitlines()[-1]


def main(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("python", nargs="*", default=[sys.executable], help="interpreters to install for")
    parser.add_argument("--out", type=Path, help="keep the distributions in this folder, which must be empty")
    given = parser.parse_args(arguments)
    with tempfile.TemporaryDirectory() as scratch:
        out = given.out or Path(scratch, "dist")
        wheel = build(out)
        for number, python in enumerate(given.python):
            folder = Path(scratch, str(number))
            folder.mkdir()
            print(smoke(python, wheel.resolve(), folder), flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
