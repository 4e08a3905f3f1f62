"""Register tiles: their declarations, and the intrinsics that are their inner loops."""
