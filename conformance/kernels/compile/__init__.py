"""Kernels compiled ahead of time: what the compiler of each TPU says, without a TPU.

`grid` has the cells, `compiler` compiles one, `table` and `baseline` say what came of them.
"""
