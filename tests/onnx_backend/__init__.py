"""ONNX's own backend tests, run on `mgx_numba.backend`; the manifest lists the failing tests with reasons."""
