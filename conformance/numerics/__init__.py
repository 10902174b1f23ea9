"""Attention in float64, and the error bounds that a kernel is held to."""
