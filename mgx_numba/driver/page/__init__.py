"""A measured program as one self-contained HTML page: `data` collects the content, the other files display it."""
