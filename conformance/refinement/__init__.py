"""Refinement: the jitted engine held to the specification on every transition of a geometry."""
