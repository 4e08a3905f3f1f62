"""What is released: ``python -m tools.release`` builds source distribution and wheels, and tries them."""
