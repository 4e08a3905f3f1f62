"""NVIDIA's libraries of contractions, which tuning may choose where they are installed."""
