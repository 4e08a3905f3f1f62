"""Problems: what kernels compute, as plain data, independent of any back end."""
