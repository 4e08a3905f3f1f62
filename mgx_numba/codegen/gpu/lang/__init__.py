"""Functions of the GPU kernel language that the CPU language lacks."""
