"""Models on a cluster."""
