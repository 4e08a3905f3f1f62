"""Convolutions by Winograd's minimal filtering; `solver` and `strided` are what others import."""
