"""Generators of attention."""
