"""Tools that make releases; no part of the wheel."""
