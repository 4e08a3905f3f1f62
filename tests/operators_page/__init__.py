"""The page of ONNX operators in ``docs``, generated from the parsers, ONNX's schemas and plans."""
