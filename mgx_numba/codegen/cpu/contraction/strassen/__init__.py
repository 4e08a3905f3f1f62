"""Large matrix products by Strassen's method; other packages import only `solver`."""
