"""Front ends: each parses one model format into a `graph.Program`."""
