"""Language models: from a file to streamed text.

The classes have onnxruntime-genai's names and meaning, so a script runs with ``import mgx_numba.llm as og``;
`generate` and `stream` need one call.
"""

from __future__ import annotations

from .genai import Config
from .generation.generator import Generator
from .generation.params import GeneratorParams, SearchOptions
from .generation.prefixes import PrefixCache
from .model import LanguageModel as Model
from .tensor import ModelTensor as Tensor
from .text import Completion, generate, stream
from .tokenizer import Tokenizer, TokenizerStream

__all__ = [
    "Completion",
    "Config",
    "Generator",
    "GeneratorParams",
    "Model",
    "PrefixCache",
    "SearchOptions",
    "Tensor",
    "Tokenizer",
    "TokenizerStream",
    "generate",
    "stream",
]
