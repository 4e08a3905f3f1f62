"""Files of language models: GGUF files, and transformers folders with safetensors."""

from .opened import GgufTokenizer, OpenedModel, open_model

__all__ = ["GgufTokenizer", "OpenedModel", "open_model"]
