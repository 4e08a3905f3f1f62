"""Tests of the graph: saving, exporting."""
