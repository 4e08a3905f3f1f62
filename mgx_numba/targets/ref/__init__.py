"""The ``ref`` target: evaluates every operator by its NumPy meaning, without fusion or memory planning; the numerics
oracle."""
