"""Clusters to Python source to machine code: kernel sources, their compiler, the object store and the loader."""
