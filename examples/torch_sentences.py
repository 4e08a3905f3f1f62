"""Embed sentences with `sentence-transformers`, compiled (needs the extra `torch`, and sentence-transformers):
`python examples/torch_sentences.py [MODEL] [SENTENCE ...]`.

MODEL is the name of a model on the Hugging Face Hub (`all-MiniLM-L6-v2`), or its folder. Without it the example makes a
small BERT with random weights and a tokeniser of a few words. It prints the cosine of each two sentences, then the
largest difference from the embeddings of PyTorch's eager mode.
"""

from __future__ import annotations

import sys
import tempfile

import numpy as np
import torch
import transformers
from sentence_transformers import SentenceTransformer
from tokenizers import Tokenizer, models, pre_tokenizers

import mgx_numba.torch  # noqa: F401  (registers the backend where the package is not installed)

SENTENCES = ("a cat sleeps on the sofa", "a kitten sleeps on a couch", "the parliament passed the budget")


def small_model(folder: str) -> SentenceTransformer:
    """A BERT with random weights, and a tokeniser that knows the words of `SENTENCES`, by way of a folder."""
    words = ["[PAD]", "[UNK]", *sorted({word for text in SENTENCES for word in text.split()})]
    tokenizer = Tokenizer(models.WordLevel({word: k for k, word in enumerate(words)}, "[UNK]"))
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    torch.manual_seed(0)
    config = transformers.BertConfig(
        vocab_size=len(words), hidden_size=64, num_hidden_layers=2, num_attention_heads=4, intermediate_size=128
    )
    transformers.BertModel(config).save_pretrained(folder)
    fast = transformers.PreTrainedTokenizerFast(tokenizer_object=tokenizer, pad_token="[PAD]", unk_token="[UNK]")
    fast.save_pretrained(folder)
    return SentenceTransformer(folder, device="cpu")


def main() -> None:
    sentences = sys.argv[2:] or list(SENTENCES)
    with tempfile.TemporaryDirectory() as folder:
        model = SentenceTransformer(sys.argv[1], device="cpu") if len(sys.argv) > 1 else small_model(folder)
        expected = model.encode(sentences, normalize_embeddings=True)
        model[0].auto_model.compile(backend="mgx_numba", dynamic=True)
        found = model.encode(sentences, normalize_embeddings=True)
    for row, sentence in zip(found @ found.T, sentences):
        print(" ".join(f"{cosine:6.3f}" for cosine in row), sentence)
    print(f"largest difference from eager mode: {np.abs(found - expected).max():.0e}")


if __name__ == "__main__":
    main()
