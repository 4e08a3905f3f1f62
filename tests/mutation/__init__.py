"""Mutated ``.mxr`` files: their generation and accepted outcomes. ``python -m tests.fuzz_mxr`` runs many."""
