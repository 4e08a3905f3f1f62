"""The ``ref`` target: every operator by its NumPy meaning, no fusion, no memory planning; the numerics oracle."""
