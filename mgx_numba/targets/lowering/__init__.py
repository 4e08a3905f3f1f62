"""Lower an optimised program to a plan: views, buffers, destinations, memory colouring."""
