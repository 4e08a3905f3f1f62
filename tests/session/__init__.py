"""Sessions in ONNX Runtime's shape."""
