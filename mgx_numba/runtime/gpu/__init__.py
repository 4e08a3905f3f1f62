"""Run plans on a GPU: memory, streams, graphs, and an interpreter that stands in for a device."""
