"""The sources on which the fate of a mutant depends, by its group and the method."""

from functools import cache
from pathlib import Path
from typing import Final

from conformance.mutation.methods import METHODS
from conformance.mutation.targets import GROUPS, REFINE, TESTS, TRACE, UNIT_TESTS
from conformance.runtime.sources import PACKAGES, code_of, digest, imported

MUTANTS: Final = (
    "engine_with_mutants",
    "operators",
    "planting",
    "rewriting",
    "schemata",
    "targets",
    "worker",
)
"""The modules that number mutants and select them. What they import does not count: `targets` names
every module of ours.
"""
JUDGES: Final = {
    **{method: (judge.__module__,) for method, judge in METHODS.items()},
    REFINE: ("conformance.mutation.transitions",),
    TRACE: ("conformance.mutation.judges.fuzz", "conformance.mutation.judges.replay"),
}
"""The modules of each method."""


@cache
def stamp(group: str, method: str) -> str:
    """A digest of the code that a method imports, the mutated modules among it.

    Words do not count: a docstring kills no mutant. A method that runs tests has one of all bytes,
    those of the tests among them.
    """
    if method in {TESTS, UNIT_TESTS}:
        return digest(*PACKAGES, "tests")
    mutated = (*GROUPS[group].modules, *GROUPS[group].checked)
    own = (Path(__file__).with_name(f"{name}.py") for name in MUTANTS)
    return code_of([*own, *imported(*JUDGES[method], *mutated)])
