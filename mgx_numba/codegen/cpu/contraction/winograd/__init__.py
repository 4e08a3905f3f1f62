"""Convolutions by Winograd's minimal filtering; code outside this package imports `solver`."""
