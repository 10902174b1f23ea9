"""Mutants that nothing can tell from the engine, and the reason of each, by id.

A mutant is equivalent if its program is the same, if it gives the same on every input of a stated
domain, or if two readers found no input on which it differs.
"""

from typing import Final

EQUIVALENT: Final[dict[str, str]] = {}
