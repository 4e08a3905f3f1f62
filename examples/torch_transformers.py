"""Classify texts with a `transformers` pipeline whose model is compiled (needs the extra `torch`, and transformers):
`python examples/torch_transformers.py [MODEL] [TEXT ...]`.

MODEL is the name of a text classifier on the Hugging Face Hub, or its folder. Without it the example makes a small BERT
with random weights and a tokeniser of a few words, so that nothing is fetched. Texts may have any length: the model is
compiled once, with `dynamic=True`. It prints a label and its score for each text, then the largest difference from
the scores of PyTorch's eager mode.
"""

from __future__ import annotations

import sys
from typing import Any

import torch
import transformers
from tokenizers import Tokenizer, models, pre_tokenizers

import mgx_numba.torch  # noqa: F401  (registers the backend where the package is not installed)

TEXTS = ("this film is good", "this film is not good at all", "it is very very long and not good")


def small_classifier() -> tuple[Any, Any]:
    """A BERT with random weights, and a tokeniser that knows the words of `TEXTS`."""
    words = ["[PAD]", "[UNK]", *sorted({word for text in TEXTS for word in text.split()})]
    tokenizer = Tokenizer(models.WordLevel({word: k for k, word in enumerate(words)}, "[UNK]"))
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    torch.manual_seed(0)
    config = transformers.BertConfig(
        vocab_size=len(words), hidden_size=64, num_hidden_layers=2, num_attention_heads=4, intermediate_size=128
    )
    model = transformers.BertForSequenceClassification(config).eval()
    fast = transformers.PreTrainedTokenizerFast(tokenizer_object=tokenizer, pad_token="[PAD]", unk_token="[UNK]")
    return model, fast


def main() -> None:
    if len(sys.argv) > 1:
        model: Any = transformers.AutoModelForSequenceClassification.from_pretrained(sys.argv[1])
        tokenizer: Any = transformers.AutoTokenizer.from_pretrained(sys.argv[1])
    else:
        model, tokenizer = small_classifier()
    texts = sys.argv[2:] or list(TEXTS)

    classify = transformers.pipeline("text-classification", model=model, tokenizer=tokenizer, device="cpu")
    expected = [classify(text)[0] for text in texts]
    classify.model.compile(backend="mgx_numba", dynamic=True)
    found = [classify(text)[0] for text in texts]
    for text, answer in zip(texts, found):
        print(f"{answer['label']:10} {answer['score']:.3f} {text}")
    difference = max(abs(a["score"] - b["score"]) for a, b in zip(expected, found))
    print(f"largest difference of scores from eager mode: {difference:.0e}")


if __name__ == "__main__":
    main()
