"""Types of decoded files and messages (JSON, MessagePack, GGUF's metadata): who reads a value checks what it is."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

JsonObject = Mapping[str, Any]
JsonArray = list[Any]
