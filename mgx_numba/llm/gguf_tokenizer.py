"""The tokenizer of a GGUF file, as a tokenizer of the package ``tokenizers``."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from ..errors import FormatError, UnsupportedError
from ..garbage import uncollected
from ..json_types import JsonObject
from .optional import required
from .sentence_pieces import SPACE, SentencePieces

_UNKNOWN, _CONTROL, _USER_DEFINED = 2, 3, 4
"""Kinds in ``tokenizer.ggml.token_type``: llama_token_type of llama.h."""

_GPT2 = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"
_CONTRACTIONS = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+"
_REST = r" ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
_SPLITS: dict[str, Sequence[str]] = {
    "default": (_GPT2,),
    "gpt-2": (_GPT2,),
    "olmo": (_GPT2,),
    "phi-2": (_GPT2,),
    "smollm": (r"\p{N}", _GPT2),
    "starcoder": (r"\p{N}", _GPT2),
    "refact": (r"\p{N}", _GPT2),
    "llama-bpe": (rf"{_CONTRACTIONS}|\p{{N}}{{1,3}}|{_REST}",),
    "llama3": (rf"{_CONTRACTIONS}|\p{{N}}{{1,3}}|{_REST}",),
    "dbrx": (rf"{_CONTRACTIONS}|\p{{N}}{{1,3}}|{_REST}",),
    "smaug-bpe": (rf"{_CONTRACTIONS}|\p{{N}}{{1,3}}|{_REST}",),
    "qwen2": (rf"{_CONTRACTIONS}|\p{{N}}|{_REST}",),
    "stablelm2": (rf"{_CONTRACTIONS}|\p{{N}}|{_REST}",),
}
"""Expressions that split a text before byte pairs are merged, by ``tokenizer.ggml.pre``, as in llama-vocab.cpp."""


def tokenizer_of_gguf(metadata: Mapping[str, object]) -> Any:
    """Return the ``tokenizers.Tokenizer``, or `SentencePieces`, that metadata of a GGUF file describe.

    Args:
        metadata: values by key, ``tokenizer.ggml.model`` and others.

    Raises:
        FormatError: a key is missing.
        UnsupportedError: the kind of tokenizer or its way of splitting is unknown.
    """
    with uncollected():
        return _tokenizer(required("tokenizers", "a tokenizer"), metadata)


def _tokenizer(package: Any, metadata: JsonObject) -> Any:
    kind = metadata.get("tokenizer.ggml.model")
    if "tokenizer.ggml.tokens" not in metadata:
        raise FormatError("the GGUF file has no tokenizer.ggml.tokens")
    tokens = list(map(str, metadata["tokenizer.ggml.tokens"]))
    vocabulary = dict(zip(tokens, range(len(tokens))))
    if kind == "gpt2":
        found = _byte_pairs(package, metadata, vocabulary)
    elif kind == "llama":
        found = _sentence_pieces(package, metadata, vocabulary)
    else:
        raise UnsupportedError(f"tokenizer.ggml.model is {kind!r}; expected 'gpt2' or 'llama'")
    kinds = np.asarray(metadata.get("tokenizer.ggml.token_type", ()))
    # Each call prepares the search for all added tokens again, so there are two calls.
    for special, wanted in ((False, kinds == _USER_DEFINED), (True, (kinds == _CONTROL) | (kinds == _UNKNOWN))):
        places = np.flatnonzero(wanted).tolist()
        added = [package.AddedToken(tokens[place], special=special, normalized=False) for place in places]
        (found.add_special_tokens if special else found.add_tokens)(added)
    ends = _ends(metadata, kind)
    before, behind = ([(tokens[place], place) for place in places] for places in ends)
    if before or behind:
        template = [*(name for name, _ in before), "$A", *(name for name, _ in behind)]
        found.post_processor = package.processors.TemplateProcessing(single=template, special_tokens=before + behind)
    if kind == "gpt2":
        return found
    scores = np.asarray(metadata.get("tokenizer.ggml.scores", ()), np.float64).tolist()
    if len(scores) != len(tokens):
        raise FormatError(f"tokenizer.ggml.scores has {len(scores)} numbers, expected {len(tokens)}: one a token")
    return SentencePieces(found, vocabulary, scores, _prefixed(metadata), ends, _unknown(metadata))


def _byte_pairs(package: Any, metadata: JsonObject, vocabulary: Mapping[str, int]) -> Any:
    pre = str(metadata.get("tokenizer.ggml.pre", "default"))
    if pre not in _SPLITS:
        raise UnsupportedError(f"tokenizer.ggml.pre is {pre!r}; expected one of {', '.join(_SPLITS)}")
    merges = _pairs(list(map(str, metadata.get("tokenizer.ggml.merges", ()))))
    found = package.Tokenizer(
        package.models.BPE(vocab=vocabulary, merges=merges, ignore_merges=pre.startswith("llama"))
    )
    steps = [package.pre_tokenizers.Split(package.Regex(text), "isolated") for text in _SPLITS[pre]]
    steps.append(package.pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False))
    found.pre_tokenizer = package.pre_tokenizers.Sequence(steps)
    found.decoder = package.decoders.ByteLevel()
    return found


def _pairs(merges: Sequence[str]) -> list[tuple[str, ...]]:
    """Return the two parts of each merge, which the first space separates."""
    parts = " ".join(merges).split(" ")  # at once, where no part has a space
    if len(parts) == 2 * len(merges):
        return list(zip(parts[::2], parts[1::2]))
    wrong = next((merge for merge in merges if " " not in merge), None)
    if wrong is not None:
        raise FormatError(f"tokenizer.ggml.merges has {wrong!r}, expected two parts and a space between them")
    return [tuple(merge.split(" ", 1)) for merge in merges]


def _sentence_pieces(package: Any, metadata: JsonObject, vocabulary: Mapping[str, int]) -> object:
    """Return a tokenizer without merges, which `SentencePieces` does by scores."""
    unknown, prefixed = _unknown(metadata), _prefixed(metadata)
    model = package.models.BPE(
        vocab=vocabulary,
        merges=[],
        byte_fallback=True,
        fuse_unk=True,
        unk_token=None if unknown is None else str(metadata["tokenizer.ggml.tokens"][unknown]),
    )
    found = package.Tokenizer(model)
    space = package.normalizers.Replace(" ", SPACE)
    found.normalizer = package.normalizers.Sequence([package.normalizers.Prepend(SPACE), space]) if prefixed else space
    decoders = package.decoders
    steps = [decoders.Replace(SPACE, " "), decoders.ByteFallback(), decoders.Fuse()]
    if prefixed:
        steps.append(decoders.Strip(" ", 1, 0))
    found.decoder = decoders.Sequence(steps)
    return found


def _prefixed(metadata: Mapping[str, object]) -> bool:
    """Return whether a space is put before a text."""
    return bool(metadata.get("tokenizer.ggml.add_space_prefix", True))


def _unknown(metadata: JsonObject) -> int | None:
    """Return the token of characters without a token."""
    found = metadata.get("tokenizer.ggml.unknown_token_id")
    return None if found is None else int(found)


def _ends(metadata: JsonObject, kind: str) -> tuple[list[int], list[int]]:
    """Return the tokens that begin and end a text, where the file wants them."""
    found = []
    for role, plain in (("bos", kind == "llama"), ("eos", False)):
        place = metadata.get(f"tokenizer.ggml.{role}_token_id")
        wanted = metadata.get(f"tokenizer.ggml.add_{role}_token", plain)
        found.append([int(place)] if wanted and place is not None else [])
    return found[0], found[1]
