"""Generators of matrix products and convolutions."""
