"""Attention over the paged cache, chosen explicitly."""
