"""Benchmarks: ratios measured in one run, and the check that no entry point copies the pool."""
