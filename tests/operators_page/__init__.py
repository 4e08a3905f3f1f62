"""The page of ONNX operators in ``docs``, from what the parsers, ONNX's schemas and plans say."""
