"""Contractions: matrix products and convolutions, as solvers over declared register tiles (`solvers`)."""
