"""What kernels are asked to compute, as plain data: no back end is named here."""
