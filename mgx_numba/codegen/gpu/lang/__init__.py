"""What the GPU's kernel language has besides the names that it shares with the CPU's."""
