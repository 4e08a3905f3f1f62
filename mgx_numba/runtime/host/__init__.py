"""Native code on the host that evaluates the numbers of symbolic plans, for any back end."""
