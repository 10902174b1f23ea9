"""What is known of the mutants that nothing kills, by id: two files of data.

A mutant is equivalent if its program is the same, if it gives the same on every input of a stated
domain, or if two readers found no input on which it differs. It does not count then. One that is
missed does count as a survivor: what tells it from the engine is known, and so is why no method of
the kit meets that. The reasons are data, so that a new one does not discard what became of the
mutants.
"""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Final

_HERE: Final = Path(__file__).parent
EQUIVALENT: Final[Mapping[str, str]] = json.loads(
    (_HERE / "equivalent.json").read_text(encoding="utf-8")
)
MISSED: Final[Mapping[str, str]] = json.loads((_HERE / "missed.json").read_text(encoding="utf-8"))
