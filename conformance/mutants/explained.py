"""Mutants that nothing can notice, and why: by their ids."""

from typing import Final

EQUIVALENT: Final[dict[str, str]] = {}
