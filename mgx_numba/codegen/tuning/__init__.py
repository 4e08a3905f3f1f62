"""Tuning: problems, measured records of their fastest solvers, and storage of records."""

from __future__ import annotations
