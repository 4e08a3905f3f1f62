"""The test suite; `python -m tests` also runs the linters, the type checker and the import contract."""
