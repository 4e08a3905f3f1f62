"""What the CPU's kernel language has besides the names that back ends share."""
