"""Runs plans on a GPU: memory, streams, graphs, and an interpreter where there is none."""
