"""ONNX's own backend tests, run on `mgx_numba.backend`; the manifest says what does not pass, and why."""
