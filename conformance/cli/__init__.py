"""The command `kvspec`: `main` dispatches, `contract` defines what every command has in common."""

from typing import Final

BAD_INPUT: Final = 2
UNDECIDED: Final = 3
"""Exit status of bad usage or bad input, and of what is not decided."""
