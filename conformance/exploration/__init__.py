"""Breadth-first search of the specification's states, packed states, the check with SPIN."""
