"""Measurements: ratios within one run, and whether an entry point copies the pool."""
