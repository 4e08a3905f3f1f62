"""Domains that a model may omit from nodes or imports, against the ONNX specification."""

from __future__ import annotations

from ...ops.custom import custom_domains
from . import registry
from .onnx_package import newest_opset
from .schema import newest_since

DOMAINS = (registry.MICROSOFT, registry.ML)
"""Domains whose operators keep their meaning across versions."""


def home_of(op_type: str) -> str:
    """Return the domain of an operator written without domain: another domain if only that domain has the operator."""
    if registry.find("", op_type) is not None or newest_since("", op_type) is not None:
        return ""
    homes = [domain for domain in DOMAINS if registry.find(domain, op_type) is not None]
    return homes[0] if len(homes) == 1 else ""


def implied_opset(domain: str) -> int | None:
    """Return the operator set that applies if a domain is not imported; ``None`` if the import is mandatory."""
    if domain == registry.ML:
        return newest_opset(registry.ML)
    return 1 if domain == registry.MICROSOFT or domain in custom_domains() else None
