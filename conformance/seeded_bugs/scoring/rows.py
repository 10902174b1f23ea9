"""The rows of a score: plain data, with the keys of the JSON result."""

from typing import TypedDict


class Tally(TypedDict):
    """One method at one plant. tries, caught: numbers of seeds. steps, seconds: medians if caught.

    worst: the most seconds. share: the share of the tries that caught it soon enough. shrunk: the
    steps of a counterexample.
    """

    tries: int
    caught: int
    share: float
    steps: float | None
    seconds: float | None
    worst: float | None
    shrunk: int | None
    clauses: list[str]
    errors: list[str]


class Row(TypedDict):
    """One plant. by: the methods that caught it. changed: whether it is shown to change behaviour.

    first_sight: whether it was caught before the kit was changed for it; the rest is of now.
    decided: whether every try was made. methods: the tally of each method, or why there is none.
    """

    id: str
    mechanism: str
    thread: str
    clause: str
    first_sight: str
    caught: bool
    by: list[str]
    steps: float | None
    seconds: float | None
    share: float | None
    shrunk: int | None
    changed: bool | None
    decided: bool
    methods: dict[str, Tally | str]


class BlindRow(TypedDict):
    """One blind oracle, at the plant that it misses and at one that it sees.

    kit: the tally of fuzzing at the former.
    """

    oracle: str
    what: str
    misses: str
    missed: Tally
    kit: Tally
    sees: str
    seen: Tally


class CleanFinding(TypedDict):
    """A finding of a method in the engine without a bug."""

    method: str
    seed: int
    clause: str | None


class Controls(TypedDict):
    """The engine without a bug, and how many plants are shown to change behaviour."""

    clean_tries: int
    clean_findings: int
    clean: list[CleanFinding]
    changed: int


class Targets(TypedDict):
    """How many plants are caught, with which budget. missed: the plants that miss each target."""

    plants: int
    caught: int
    seeds: int
    steps: int
    missed: dict[str, list[str]]
    slow: list[str]
    undecided: dict[str, str]


class Score(TypedDict):
    """The whole result of `kvspec plant`."""

    bugs: list[Row]
    controls: Controls
    score: Targets
    blind: list[BlindRow]
    tries_left: int
    versions: dict[str, str]
