"""Tuning: problems, measured records of how they are best solved, and where such records are kept."""

from __future__ import annotations
