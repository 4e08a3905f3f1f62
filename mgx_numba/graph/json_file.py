"""JSON of a model's files, with errors that name the file."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from ..errors import FormatError


def json_object(data: bytes | str, where: object) -> dict[str, Any]:
    """Return the JSON object in a text (UTF-8).

    Raises:
        FormatError: the text is no JSON, or no object; the message begins with ``where``.
    """
    try:
        found = json.loads(data)
    except (ValueError, RecursionError) as error:
        raise FormatError(f"{where}: not a JSON file: {error}") from error
    if not isinstance(found, dict):
        raise FormatError(f"{where} holds JSON of type {type(found).__name__}, expected an object")
    return found


def read_text(path: Path) -> str:
    """Return the text of a file.

    Raises:
        FormatError: the file cannot be read, or is not UTF-8.
    """
    try:
        return path.read_text("utf-8")
    except OSError as error:
        raise FormatError(f"{path}: {error.strerror or error}") from error
    except ValueError as error:
        raise FormatError(f"{path}: not a text in UTF-8: {error}") from error
