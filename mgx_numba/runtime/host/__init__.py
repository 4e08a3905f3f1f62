"""What the host computes of a symbolic plan for any back end, in native code."""
