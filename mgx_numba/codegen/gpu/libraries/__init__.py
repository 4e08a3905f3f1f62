"""NVIDIA's contraction libraries, which tuning may select where they are installed."""
