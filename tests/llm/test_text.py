"""Tokenizers, chat templates, stop strings, and text in one call."""

import itertools
import json
import re

import numpy as np
import pytest

from mgx_numba.errors import FormatError, MgxError, OptionError, ParameterError, UnsupportedError
from mgx_numba.llm import Config, Model, Tokenizer, generate, stream
from mgx_numba.llm.generation.chooser import candidates, draw
from mgx_numba.llm.generation.params import SearchOptions
from mgx_numba.llm.generation.stopping import TextStream
from mgx_numba.llm.gguf_tokenizer import tokenizer_of_gguf
from mgx_numba.llm.model import LanguageModel
from mgx_numba.llm.optional import required
from mgx_numba.llm.templates import rendered
from tests.llm.test_generator import greedy
from tests.llm.tiny import END, tiny, write
from tests.llm.words import Words


class Letters:
    """Token N is the N-th byte of a text; decoding is that of UTF-8."""

    def __init__(self, text):
        self.bytes = text.encode()

    def decode(self, tokens):
        return bytes(self.bytes[t] for t in tokens).decode(errors="replace")

    def create_stream(self):
        from mgx_numba.llm import TokenizerStream

        return TokenizerStream(self)


def test_characters_of_several_tokens_come_whole():
    text = "aé€😀b"
    letters = Letters(text)
    stream = letters.create_stream()
    pieces = [stream.decode(k) for k in range(len(letters.bytes))]
    assert "".join(pieces) == text and [p for p in pieces if p] == list(text)


class Parts(Letters):
    """Token N is the N-th of some parts of a text's bytes."""

    def __init__(self, parts):
        self.parts = parts

    def decode(self, tokens):
        return b"".join(self.parts[t] for t in tokens).decode(errors="replace")


class Fallback(Parts):
    """Parts are characters or bytes; a run of bytes that is no text becomes a character for each byte."""

    def decode(self, tokens):
        found = ""
        for whole, run in itertools.groupby((self.parts[t] for t in tokens), lambda part: len(part) > 1):
            data = b"".join(run)
            try:
                found += data.decode()
            except UnicodeDecodeError:
                assert not whole
                found += "\ufffd" * len(data)
        return found


def test_parts_of_characters_in_one_token_lose_no_text():
    rng = np.random.default_rng(0)
    for _ in range(200):
        text = "".join(rng.choice(list("ab é€😀語"), 12))
        data = text.encode()
        ends = [0, *sorted(rng.choice(np.arange(1, len(data)), 6, replace=False).tolist()), None]
        mixed = [p for c in text for p in ([c.encode()] if rng.integers(2) else [bytes([b]) for b in c.encode()])]
        for parts in (Parts([data[a:b] for a, b in itertools.pairwise(ends)]), Fallback(mixed)):
            stream = parts.create_stream()
            assert "".join(map(stream.decode, range(len(parts.parts)))) == text and stream.finish() == ""


def test_bytes_that_are_no_text_come_as_the_whole_text_has_them():
    rng = np.random.default_rng(0)
    for _ in range(200):
        parts = Parts([rng.choice([b"a", b"\xe2", b"\x82", b"\xac", b"\xff", b""]) for _ in range(100)])
        found = TextStream(parts)
        assert "".join(map(found.add, range(100))) + found.finish() == parts.decode(range(100))


def test_text_that_may_begin_a_stop_string_is_held_back():
    for text, stops, wanted in (
        ("abcabd-abcd!", ["abcd"], "abcabd-"),
        ("abcabd", ["abcd", "zz"], "abcabd"),
        ("xxab", ["abc"], "xxab"),
        ("one two", [" ", "one t"], "one"),
    ):
        found = TextStream(Letters(text), stops)
        pieces = [found.add(k) for k in range(len(text))]
        for k in range(len(pieces)):
            assert wanted.startswith("".join(pieces[: k + 1]))
        assert "".join(pieces) + found.finish() == wanted
        assert found.stopped == (wanted != text)


@pytest.fixture
def worded(compiled, monkeypatch):
    monkeypatch.setattr(LanguageModel, "tokenizer", Words())
    return compiled["plain"]


def test_text_in_one_call_is_the_numpy_loops(worded):
    weights, model = worded
    tokens = greedy(weights, [5, 6], 22)[2:]
    words = Words().decode(t for t in tokens if t != END)
    assert generate(model, "t5 t6", max_tokens=20) == words
    assert generate(model, [5, 6], max_tokens=20) == words
    completion = stream(model, [{"role": "user", "content": "t6"}], max_tokens=5, ignore_eos=True)
    assert len(list(completion)) == 5 and completion.finish_reason == "length" and completion.prompt_tokens == 2
    completion = stream(model, "t5 t6", max_tokens=20, logprobs=2)
    assert "".join(completion) == words and [entry.token for entry in completion.logprobs] == tokens
    for k, entry in enumerate(completion.logprobs):
        logits = weights.logits([5, 6, *tokens[:k]])[-1]
        p = np.exp(logits - logits.max())
        assert entry.logprob == entry.top[0][1] == pytest.approx(np.log(p.max() / p.sum()), abs=1e-3)
        assert [token for token, _ in entry.top] == np.argsort(-p)[:2].tolist()
    stop = words.split()[3]
    assert generate(model, "t5 t6", max_tokens=20, stop=None) == words
    completion = stream(model, "t5 t6", max_tokens=20, stop=stop)
    assert "".join(completion) == words[: words.index(stop)] and completion.finish_reason == "stop"
    several = generate(model, "t5 t6", max_tokens=6, num_beams=3, num_return_sequences=2)
    assert isinstance(several, list) and len(set(several)) == 2


def test_wrong_arguments_of_a_call_are_named(worded):
    _, model = worded
    for arguments, kind, message in (
        ({"prompt": ""}, ParameterError, "the prompt is empty"),
        ({"prompt": "t5 " * 96}, ParameterError, "96 tokens, expected fewer than the model's context length 96"),
        ({"prompt": "t5", "max_tokens": 0}, OptionError, "max_tokens=0: expected an integer from 1 on"),
        (
            {"prompt": "t5", "regex": "a", "grammar": "b"},
            OptionError,
            "one constraint, not regex and lark_grammar",
        ),
        *(
            ({"prompt": wrong}, OptionError, "expected a text, a list of tokens, or a list of messages")
            for wrong in ([[5]], None, {"role": "user"}, ["a", "b"], [1.5], [5, [6]])
        ),
        ({"prompt": [2**40]}, ParameterError, "token 1099511627776 is not in the vocabulary"),
        ({"prompt": "t5", "max_tokens": 2.5}, OptionError, "max_tokens=2.5: expected an integer from 1 on"),
        ({"prompt": "t5", "logprobs": 21}, OptionError, "logprobs=21: expected an integer from 0 to 20, or None"),
        *(({"prompt": "t5", "logprobs": x}, OptionError, f"logprobs={x!r}: expected an int") for x in (1.5, "x")),
        *(({"prompt": "t5", "stop": x}, OptionError, f"stop={x!r}: expected a text, or") for x in ([5], 5, b"a")),
        ({"prompt": "t5", "logits_processors": [5]}, OptionError, "logits_processors: 5 is no function"),
        ({"prompt": "t5", "json_schema": {"a": 1j}}, OptionError, "json_schema: Object of type complex"),
        ({"prompt": "t5 t6", "batch_size": 2}, OptionError, "batch_size=2: a call has one prompt"),
        ({"prompt": "t5", "presence_penalty": float("nan")}, OptionError, "presence_penalty=nan: expected a finite"),
        ({"prompt": "t5", "tempreature": 1}, OptionError, "did you mean temperature"),
    ):
        with pytest.raises(kind, match=re.escape(message)):
            generate(model, **arguments)


def test_largest_logits_are_found_among_many():
    rng = np.random.default_rng(2)
    for size in (127, 129, 5000, 40000):
        logits = rng.integers(-40, 9, size).astype(np.float32)  # with ties
        order = np.argsort(-logits, kind="stable")
        for top_k in (1, 3, 50, size):
            tokens, p = candidates(logits, SearchOptions(top_k=top_k, top_p=1.0))
            wanted = order[:top_k] if top_k < size else np.arange(size)
            assert tokens.tolist() == wanted.tolist()
            weights = np.exp(logits[wanted].astype(float) - logits.max())
            np.testing.assert_allclose(p, weights / weights.sum(), rtol=1e-12)
        tokens, _ = candidates(logits, SearchOptions(top_k=0, top_p=0.9))
        weights = np.exp(logits[order].astype(float) - logits.max())
        reached = np.cumsum(weights) / weights.sum() >= 0.9 - 1e-12
        assert tokens.tolist() == order[: int(np.argmax(reached)) + 1].tolist()


def test_draws_have_the_probabilities_of_the_logits():
    p = np.array([1, 2, 3, 4] * 100) / 1000
    with np.errstate(divide="ignore"):
        logits = np.log(np.where(np.arange(400) % 7, p, 0)).astype(np.float32)
    p = np.where(np.arange(400) % 7, p, 0)
    p /= p.sum()
    for options in (SearchOptions(top_k=0), SearchOptions(top_k=399)):
        random = np.random.default_rng(0)
        counts = np.bincount([draw(logits, options, random.random()) for _ in range(20000)], minlength=400)
        assert not counts[p == 0].any()
        chi = ((counts - 20000 * p)[p > 0] ** 2 / (20000 * p[p > 0])).sum()
        assert chi < 450  # of 341 degrees of freedom: one seed in 10,000 is above
    extreme = SearchOptions(top_k=0, temperature=1e-300)
    assert draw(np.array([1, 3, 3.001, 2], np.float32), extreme, 0.6) == 2


@pytest.mark.parametrize("value,message", [(np.nan, "NaN"), (np.inf, "infinite"), (-np.inf, "excluded")])
def test_logits_without_a_choice_are_an_error(value, message):
    with pytest.raises(ParameterError, match=message):
        candidates(np.full(5, value, np.float32), SearchOptions())


MESSAGES = [{"role": "system", "content": "be <b>"}, {"role": "user", "content": "hi"}]


def test_a_greedy_choice_without_a_token_is_an_error(worded):
    _, model = worded
    for value, message in ((np.nan, "NaN"), (-np.inf, "excluded")):
        processors = [lambda tokens, logits, value=value: np.full_like(logits, value)]
        for options in ({}, {"num_beams": 2}):
            with pytest.raises(ParameterError, match=message):
                generate(model, [5, 6], logits_processors=processors, **options)


def test_templates_render_as_hugging_faces():
    template = (
        "{% for m in messages %}\n  {% if m['role'] == 'system' %}{% continue %}{% endif %}\n"
        "{{ bos_token }}[{{ m['role'] }}]{{ m['content'] | trim }}{{ m | tojson }}\n{% endfor %}\n"
        "{% if add_generation_prompt %}[assistant]{% endif %}"
    )
    wanted = '<s>[user]hi{"role": "user", "content": "hi"}\n[assistant]'
    for messages in (MESSAGES, json.dumps(MESSAGES)):
        assert rendered(template, messages, None, {"bos_token": "<s>"}, True) == wanted
    assert rendered({"default": "d", "tool_use": "{{ tools }}"}, MESSAGES, [1], {}, True) == "[1]"


@pytest.mark.parametrize(
    "template,messages,message",
    [
        (None, MESSAGES, "no chat template"),
        ("{% for %}", MESSAGES, "TemplateSyntaxError"),
        ("{{ raise_exception('roles must alternate') }}", MESSAGES, "roles must alternate"),
        ("{{ messages.__class__.__mro__ }}", MESSAGES, "SecurityError"),
        ("{{ messages.append(1) }}", MESSAGES, "SecurityError"),
        ("x", "{", "messages: not JSON"),
        ("x", "5", "messages: expected a list, got int"),
        ("x", [{"content": "hi"}], r"messages\[0\]: expected an object with role"),
    ],
)
def test_templates_that_fail_or_escape_are_errors(template, messages, message):
    with pytest.raises(OptionError, match=message):
        rendered(template, messages, None, {}, True)


def test_a_package_that_is_missing_is_named_with_the_extra():
    with pytest.raises(UnsupportedError, match=r"a test needs the package nothing_like_it.*mgx_numba\[llm\]"):
        required("nothing_like_it.inside", "a test")


def test_folders_that_are_no_models_are_named(tmp_path):
    with pytest.raises(OptionError, match="target 'tpu': expected 'cpu', 'gpu' or 'ref'"):
        Model(tmp_path, target="tpu")
    with pytest.raises(FormatError, match="no such file or folder"):
        Model(tmp_path / "absent")
    file = tmp_path / "genai_config.json"
    for text, message in (
        ("{", "not a JSON file"),
        ("{}", "the entry model.decoder"),
        ("[]", "JSON of type list, expected an object"),
        ('{"model": []}', "the entry model.decoder"),
    ):
        file.write_text(text)
        with pytest.raises(FormatError, match=message):
            Model(tmp_path)
    file.write_text('{"model": {"decoder": {"filename": "other.onnx"}}}')
    with pytest.raises(FormatError, match=r"model\.decoder\.filename names .*other\.onnx"):
        Model(tmp_path)


def test_settings_are_merged_and_providers_choose_the_target(tmp_path):
    config = Config(write(tiny("plain"), tmp_path / "m"))
    config.overlay('{"search": {"top_k": 3}, "model": {"eos_token_id": [3, 4]}}')
    assert config.settings["search"] == {"max_length": 96, "top_k": 3}
    assert config.settings["model"]["vocab_size"] == 50 and config.target == "cpu"
    config.append_provider("cuda")
    assert config.target == "gpu"
    config.clear_providers()
    assert config.target == "cpu"
    model = Model(config, num_threads=1)
    assert (model.search["top_k"], model.eos_token_ids, model.type, model.device_type) == (3, (3, 4), "tiny", "CPU")
    for wrong, message in (("{", "not JSON"), ("5", "expected a JSON object")):
        with pytest.raises(OptionError, match=message):
            config.overlay(wrong)
    with pytest.raises(OptionError, match="provider 'tpu' is unknown"):
        config.append_provider("tpu")


def test_inputs_without_a_role_are_named(tmp_path):
    folder = write(tiny("plain"), tmp_path / "m")
    file = folder / "genai_config.json"
    settings = json.loads(file.read_text())
    settings["model"]["decoder"]["inputs"]["past_value_names"] = "past.%d.v"
    file.write_text(json.dumps(settings))
    with pytest.raises(MgxError, match=r"inputs without a known role: past_key_values\.0\.value"):
        Model(folder)


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """Return a folder with a tokenizer of bytes and merges that tokenizers trained."""
    tokenizers = pytest.importorskip("tokenizers")
    path = tmp_path_factory.mktemp("tokenizer")
    found = tokenizers.Tokenizer(tokenizers.models.BPE())
    found.pre_tokenizer = tokenizers.pre_tokenizers.ByteLevel(add_prefix_space=False)
    found.decoder = tokenizers.decoders.ByteLevel()
    trainer = tokenizers.trainers.BpeTrainer(
        vocab_size=320,
        special_tokens=["<s>", "</s>"],
        initial_alphabet=tokenizers.pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    found.train_from_iterator(["hello world, it's the 12th test of 345 tokens"] * 3, trainer)
    found.post_processor = tokenizers.processors.TemplateProcessing(single="<s> $A", special_tokens=[("<s>", 0)])
    found.save(str(path / "tokenizer.json"))
    settings = {"bos_token": {"content": "<s>"}, "eos_token": "</s>", "chat_template": "{{ bos_token }}{{ messages }}"}
    (path / "tokenizer_config.json").write_text(json.dumps(settings))
    return path


def test_tokenizers_add_and_skip_special_tokens_when_asked(folder):
    tokenizer = Tokenizer(folder)
    text = "hello wörld"
    tokens = tokenizer.encode(text).tolist()
    assert tokenizer.decode([0, *tokens, 1]) == text and 0 not in tokens
    assert tokenizer.encode(text, add_special_tokens=True).tolist() == [0, *tokens]
    tokenizer.update_options(add_special_tokens="true", skip_special_tokens=False)
    assert tokenizer.encode(text).tolist() == [0, *tokens]
    assert tokenizer.decode([0, *tokens, 1]) == f"<s>{text}</s>"
    assert (tokenizer.eos_token_ids, tokenizer.to_token_id("</s>")) == ([1], 1)
    batch = tokenizer.encode_batch(["hello", text])
    assert tokenizer.decode_batch(batch)[1] == f"<s>{text}"
    assert tokenizer.apply_chat_template([{"role": "user"}]) == "<s>[{'role': 'user'}]"
    for call, message in (
        (lambda: tokenizer.to_token_id("nothing"), "'nothing' is not in the vocabulary"),
        (lambda: tokenizer.update_options(other=True), "'other' is unknown"),
        (lambda: tokenizer.update_options(add_special_tokens="yes"), "expected 'true' or 'false'"),
    ):
        with pytest.raises(OptionError, match=message):
            call()


def test_a_folder_without_a_tokenizer_is_named(tmp_path):
    with pytest.raises(FormatError, match=r"tokenizer\.json: no such file"):
        Tokenizer(tmp_path)
    (tmp_path / "tokenizer.json").write_text("{")
    pytest.importorskip("tokenizers")
    with pytest.raises(FormatError, match="tokenizer.json"):
        Tokenizer(tmp_path)


def test_byte_pairs_of_a_gguf_file_are_the_same_tokenizer(folder):
    tokenizers = pytest.importorskip("tokenizers")
    known = tokenizers.Tokenizer.from_file(str(folder / "tokenizer.json"))
    content = json.loads(known.to_str())["model"]
    tokens = sorted(content["vocab"], key=content["vocab"].get)
    merges = [" ".join(m) if isinstance(m, list) else m for m in content["merges"]]
    metadata = {f"tokenizer.ggml.{k}": v for k, v in {
        "model": "gpt2", "pre": "gpt-2", "tokens": tokens, "merges": merges, "bos_token_id": 0, "add_bos_token": True,
        "token_type": [3, 3] + [1] * (len(tokens) - 2),
    }.items()}  # fmt: skip
    found = tokenizer_of_gguf(metadata)
    for text in ("hello world", "  it's\n\n12th  tests, tökens 345!", "<s>hello</s>", ""):
        assert found.encode(text).ids == known.encode(text).ids
        assert found.decode(found.encode(text).ids) == known.decode(known.encode(text).ids)
    with pytest.raises(UnsupportedError, match=r"tokenizer\.ggml\.pre is 'odd'; expected one of default"):
        tokenizer_of_gguf(metadata | {"tokenizer.ggml.pre": "odd"})
    with pytest.raises(UnsupportedError, match=r"tokenizer\.ggml\.model is 'rwkv'"):
        tokenizer_of_gguf(metadata | {"tokenizer.ggml.model": "rwkv"})


def test_sentence_pieces_of_a_gguf_file_merge_the_highest_score_first():
    pytest.importorskip("tokenizers")
    pieces = ["<unk>", "<s>", "</s>", *(f"<0x{k:02X}>" for k in range(256)), "▁", "a", "b", "ab", "▁a", "▁ab", "ba"]
    scores = [0.0] * 259 + [-9.0, -9.0, -9.0, -1.0, -2.0, -3.0, -0.5]
    metadata = {f"tokenizer.ggml.{k}": v for k, v in {
        "model": "llama", "tokens": pieces, "scores": scores, "bos_token_id": 1, "unknown_token_id": 0,
        "token_type": [2, 3, 3] + [6] * 256 + [1] * 7,
    }.items()}  # fmt: skip
    found = tokenizer_of_gguf(metadata)
    names = [pieces[k] for k in found.encode("aba é").ids]
    # "ba" has the best score, so "▁aba" is "▁a" and "ba"; "é" has no token and is its two bytes.
    assert names == ["<s>", "▁a", "ba", "▁", "<0xC3>", "<0xA9>"]
    assert found.decode(found.encode("aba é").ids) == "aba é"
    plain = tokenizer_of_gguf(metadata | {"tokenizer.ggml.add_space_prefix": False})
    assert [pieces[k] for k in plain.encode("ab", add_special_tokens=False).ids] == ["ab"]


@pytest.mark.parametrize(
    ("model", "key", "value", "said"),
    [
        ("gpt2", "tokens", 5, "tokens is no list of strings"),
        ("gpt2", "tokens", ["a"], "merges do not fit .*tokens: .*`b`"),
        ("gpt2", "merges", np.arange(3), "merges is no list of strings"),
        ("gpt2", "token_type", [1, 2], r"token_type is an array of shape \[2\], expected 5 numbers"),
        ("gpt2", "bos_token_id", 5, "bos_token_id is 5, expected a token from 0 to 4"),
        ("gpt2", "bos_token_id", "a", "bos_token_id is 'a'"),
        ("gpt2", "add_bos_token", np.arange(2), "add_bos_token is .*expected true or false"),
        ("llama", "unknown_token_id", -1, "unknown_token_id is -1"),
        ("llama", "scores", ["a"] * 5, "scores is an array of shape"),
        ("llama", "scores", 2.5, "scores is an array of shape"),
        ("llama", "tokens", [], "no tokenizer.ggml.tokens"),
    ],
)
def test_malformed_tokenizers_of_gguf_files_are_named(model, key, value, said):
    pytest.importorskip("tokenizers")
    metadata = {f"tokenizer.ggml.{k}": v for k, v in {
        "model": model, "tokens": ["a", "b", "ab", "<s>", "</s>"], "merges": ["a b"], "scores": [0.0] * 5,
        "token_type": [1, 1, 1, 3, 3], "bos_token_id": 3, "eos_token_id": 4, "add_bos_token": True,
    }.items()}  # fmt: skip
    assert tokenizer_of_gguf(metadata).encode("ab").ids[0] == 3
    with pytest.raises(FormatError, match=said):
        tokenizer_of_gguf(metadata | {f"tokenizer.ggml.{key}": value})


def test_sentence_pieces_are_those_of_tokenizers_with_all_merges():
    tokenizers = pytest.importorskip("tokenizers")
    rng = np.random.default_rng(0)
    letters = list("ab\u2581c\n")
    joint = {"".join(rng.choice(letters, rng.integers(2, 6))) for _ in range(60)}
    added = ["<s>", "</s>", "<x>", "<x>y"]
    pieces = [*added, *(f"<0x{k:02X}>" for k in range(256)), *letters, *sorted(joint)]
    metadata = {f"tokenizer.ggml.{k}": v for k, v in {
        "model": "llama", "tokens": pieces, "scores": rng.permutation(len(pieces)).tolist(), "bos_token_id": 0,
        "eos_token_id": 1, "add_eos_token": True, "token_type": [3, 3, 4, 4] + [6] * 256 + [1] * (len(pieces) - 260),
    }.items()}  # fmt: skip
    for prefixed in (False, True):
        found = tokenizer_of_gguf(metadata | {"tokenizer.ggml.add_space_prefix": prefixed})
        whole = tokenizers.Tokenizer.from_str(found.to_str())
        for length in (0, 1, 2, 5, 90):
            for _ in range(40):
                text = "".join(rng.choice([*"abc <", "\n", "é", "<x>", "<x>y", "</s>", "a b"], length))
                for special in (False, True):
                    wanted = whole.encode(text, add_special_tokens=special).ids
                    assert found.encode(text, add_special_tokens=special).ids == wanted
                assert found.decode(wanted) == whole.decode(wanted)


def test_grammars_constrain_the_text(folder, tmp_path):
    pytest.importorskip("llguidance")
    size = len(json.loads((folder / "tokenizer.json").read_text())["model"]["vocab"])
    path = write(tiny("grouped", vocabulary=size), tmp_path / "m", vocabulary=size, end=1)
    (path / "tokenizer.json").write_text((folder / "tokenizer.json").read_text())
    model = Model(path, num_threads=1)
    assert re.fullmatch(r"[0-9]{3}-[ab]+z", generate(model, "hello", regex=r"[0-9]{3}-[ab]{1,5}z"))
    boolean = {"properties": {"x": {"type": "boolean"}}, "required": ["x"], "additionalProperties": False}
    schema = {"type": "object", "x-guidance": {"whitespace_flexible": False}, **boolean}
    for options in ({}, {"temperature": 1.0, "random_seed": 2}):
        assert set(json.loads(generate(model, "hello", json_schema=schema, max_tokens=70, **options))) == {"x"}
    assert generate(model, "hello", grammar='start: "yes" | "no"') in ("yes", "no")
    with pytest.raises(OptionError, match="guidance json_schema"):
        generate(model, "hello", json_schema={"type": "nonsense"})
