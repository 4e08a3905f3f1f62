"""Domains that a model's nodes may leave out or not import, although ONNX wants them to."""

from __future__ import annotations

from ...ops.custom import custom_domains
from . import registry
from .schema import newest_since

__all__ = ["DOMAINS", "home_of", "implied_opset"]

DOMAINS = (registry.MICROSOFT, registry.ML)
"""Those whose operators keep their meaning from one version to the next."""


def home_of(op_type: str) -> str:
    """Domain of an operator that is written in the default one: another one if only that has it."""
    if registry.find("", op_type) is not None or newest_since("", op_type) is not None:
        return ""
    homes = [domain for domain in DOMAINS if registry.find(domain, op_type) is not None]
    return homes[0] if len(homes) == 1 else ""


def implied_opset(domain: str) -> int | None:
    """Operator set that is in force where a domain is not imported, ``None`` where it must be."""
    import onnx.defs

    if domain == registry.ML:
        return int(onnx.defs.onnx_ml_opset_version())
    return 1 if domain == registry.MICROSOFT or domain in custom_domains() else None
