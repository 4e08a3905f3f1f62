"""Large matrix products by Strassen's method; `solver` is the only module that others import."""
