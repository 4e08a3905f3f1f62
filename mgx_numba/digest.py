"""Digests of keys and of files in the cache folder, by BLAKE2b: `hashlib` loads OpenSSL, which takes 2 ms."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from hashlib import blake2b
else:
    try:
        from _blake2 import blake2b
    except ImportError:
        from hashlib import blake2b

BYTES = 32  # 256 bits: no two contents have the same digest


def new_digest() -> Any:
    """Return a hash object of `BYTES` bytes."""
    return blake2b(digest_size=BYTES)


def digest(data: bytes) -> bytes:
    """Return the digest of ``data``, `BYTES` bytes."""
    return blake2b(data, digest_size=BYTES).digest()


def text_digest(text: str) -> str:
    """Return the digest of a text as hexadecimal digits."""
    return digest(text.encode("utf-8", "surrogatepass")).hex()
