"""The C++ of guides, compiled and run: see `programs`."""
