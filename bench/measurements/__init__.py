"""Tables of the documents: measured by ``python -m bench.measurements``, kept as data, and written between markers."""
