"""The conformance kit: holds an engine, ours or another, to `spec` step for step.

Importing this package imports neither JAX nor numpy; an adapter imports what its engine needs.
"""

from typing import Final

__kvspec__: Final = True
