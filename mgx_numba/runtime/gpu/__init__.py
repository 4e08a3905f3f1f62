"""Run plans on a GPU: memory, streams and graphs."""
