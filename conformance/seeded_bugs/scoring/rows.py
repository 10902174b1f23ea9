"""The rows of a score: plain data, with the keys that the JSON result has."""

from typing import TypedDict


class Tally(TypedDict):
    """One method at one plant: how many seeds caught it, the median of what it took, the worst.

    share: of the tries, those that caught it soon enough. shrunk: the steps of a counterexample.
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

    decided: whether every try was made. methods: of each its tally, or why there is none.
    """

    id: str
    mechanism: str
    thread: str
    clause: str
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

    kit: what fuzzing caught of the former.
    """

    oracle: str
    what: str
    misses: str
    missed: Tally
    kit: Tally
    sees: str
    seen: Tally


class CleanFinding(TypedDict):
    """What a method found in the engine without a bug."""

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
    """How many plants are caught, with which budget. missed: for each target, who misses it."""

    plants: int
    caught: int
    seeds: int
    steps: int
    missed: dict[str, list[str]]
    slow: list[str]
    undecided: dict[str, str]


class Score(TypedDict):
    """Everything that `kvspec plant` counts."""

    bugs: list[Row]
    controls: Controls
    score: Targets
    blind: list[BlindRow]
    tries_left: int
    versions: dict[str, str]
