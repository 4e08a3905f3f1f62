"""Convolutions by Winograd's minimal filtering; other packages import `solver` and `strided`."""
