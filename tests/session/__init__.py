"""Tests of the interface in ONNX Runtime's form."""
