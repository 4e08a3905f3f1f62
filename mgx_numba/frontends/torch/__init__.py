"""PyTorch graphs of ATen operators: `parser.parse_graph` translates one; `export.from_module` exports a model first.

Only the modules `decompositions`, `export`, `parser` and `symbols` import torch. All others serve programs
that were saved, too.
"""
