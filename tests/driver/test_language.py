"""The driver's commands for language models."""

import io
import re

import numpy as np
import pytest

from mgx_numba.llm.model import LanguageModel
from tests.driver.support import drive, small_model
from tests.llm.tiny import tiny, write
from tests.llm.words import Words


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return write(tiny("grouped"), tmp_path_factory.mktemp("models") / "small")


def test_perf_prints_a_row_for_each_test_and_batch(folder, capsys):
    assert drive("perf", "--llm", folder, "--prompt", 8, "--tokens", 4, "--batch", "1,3", "--num-threads", 1) == 0
    rows = [[c.strip() for c in line.split("|")[1:-1]] for line in capsys.readouterr().out.splitlines() if "|" in line]
    assert rows[0] == ["model", "size", "test", "batch", "tokens/s", "of bandwidth"]
    assert [(row[2], row[3]) for row in rows[2:]] == [("pp8", "1"), ("tg4", "1"), ("pp8", "3"), ("tg4", "3")]
    assert all(re.fullmatch(r"[0-9.]+ ± [0-9.]+", row[4]) for row in rows[2:])
    assert [bool(row[5]) for row in rows[2:]] == [False, True, False, True]


@pytest.mark.parametrize(
    "words,message",
    [
        (("--prompt", 8), "--prompt and --tokens need --llm"),
        (("--batch", "1,3"), "--batch takes one length; --batch-sizes compares several"),
        (("--llm", "--tokens", 0, "--prompt", 0), "nothing to measure"),
        (("--llm", "--tokens", 96), "--tokens 96: expected .* at most the model's context length 96"),
    ],
)
def test_flags_that_do_not_fit_are_named(folder, tmp_path, words, message, capsys):
    model = folder if "--llm" in words else small_model(tmp_path / "small.onnx")
    assert drive("perf", model, *words) == 2
    assert re.search(message, capsys.readouterr().err)


def test_chat_in_a_pipe_prints_answers_alone(folder, capsys, monkeypatch):
    monkeypatch.setattr(LanguageModel, "tokenizer", Words())
    assert drive("chat", folder, "-p", "t5 t6", "--max-tokens", 4, "--num-threads", 1) == 0
    out = capsys.readouterr().out
    assert re.fullmatch(r"(t\d+ ){1,4}\n", out)
    monkeypatch.setattr("sys.stdin", io.StringIO("t5 t6\n\nt7\n"))
    assert drive("chat", folder, "--max-tokens", 4, "--num-threads", 1) == 0
    assert capsys.readouterr().out.splitlines()[0] == out.rstrip("\n")


def test_serve_needs_numbers_in_range(folder, capsys):
    assert drive("serve", folder, "--max-batch", 0) == 2
    assert "--max-batch is 0, expected a number from 1 on" in capsys.readouterr().err


def test_perplexity_is_the_exponent_of_the_mean_loss(folder, tmp_path, capsys, monkeypatch):
    monkeypatch.setattr(LanguageModel, "tokenizer", Words())
    rng = np.random.default_rng(0)
    tokens = rng.integers(4, 50, 40).tolist()
    (tmp_path / "text").write_text(Words().decode(tokens))
    assert drive("perplexity", folder, "--text", tmp_path / "text", "--window", 16, "--num-threads", 1) == 0
    losses = []
    for start in (0, 16):
        own = tokens[start : start + 16]
        logits = tiny("grouped").logits(own)[8:15]
        losses += (np.log(np.exp(logits).sum(-1)) - logits[np.arange(7), own[9:]]).tolist()
    found = re.match(r"perplexity ([0-9.]+) ± [0-9.]+ \(14 tokens\)", capsys.readouterr().out)
    assert float(found[1]) == pytest.approx(np.exp(np.mean(losses)), rel=1e-3)
    assert drive("perplexity", folder, "--window", 200) == 2
    assert "--window is 200, expected at most the model's context length 96" in capsys.readouterr().err
