"""A measured program as one self-contained HTML page: `data` gathers, the files beside it show."""
