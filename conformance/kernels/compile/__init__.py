"""Ahead-of-time compilation of kernels by the compiler of each TPU, without a TPU.

`grid` has the grid points, `compiler` compiles one, `table` and `baseline` report the records.
"""
