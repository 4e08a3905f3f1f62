"""Readers of model files: each turns one format into a `graph.Program`."""
