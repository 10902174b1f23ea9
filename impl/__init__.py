"""The reference engine: a jitted JAX implementation of what `spec` says."""
