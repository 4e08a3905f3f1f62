"""Mutated ``.mxr`` files: how they are made, and what each must come to. ``python -m tests.fuzz_mxr`` runs many."""
