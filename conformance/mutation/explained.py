"""Mutants that nothing can tell from the engine, and the reason of each, by id.

A mutant is equivalent if its program is the same, if it gives the same on every input of a stated
domain, or if two readers found no input on which it differs. The reasons are in a file of data, so
that a new one does not discard what became of the mutants.
"""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Final

FILE: Final = Path(__file__).parent / "equivalent.json"
EQUIVALENT: Final[Mapping[str, str]] = json.loads(FILE.read_text(encoding="utf-8"))
