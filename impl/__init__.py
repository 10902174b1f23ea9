"""The reference engine: a jitted JAX implementation of what `spec` says."""

from typing import Final

__kvspec__: Final = True
