"""The scripts of `examples/`."""
