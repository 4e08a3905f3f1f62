"""Large matrix products by Strassen's method; code outside this package imports only `solver`."""
