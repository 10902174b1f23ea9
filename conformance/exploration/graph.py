"""The graph of an exploration: a tree of shortest histories, and counts.

States are numbered in breadth-first order. For each state the graph keeps the state and the move by
which it was first reached. That is enough to give a shortest history, and to rebuild every state
after an interruption.
"""

import json
from collections import Counter
from collections.abc import Mapping
from io import BytesIO
from pathlib import Path
from typing import Any, Final

import numpy as np
from attrs import define, field, fields, frozen

from conformance.files import atomic
from conformance.files.serialisation import checked, clipped, shown
from spec.vocabulary import InvalidInput, Reason

FORMAT: Final = 1
MOST: Final = 1 << 62
"""Every count in a checkpoint is below this bound."""
Ints = np.ndarray[Any, np.dtype[np.int32]]


@define
class Graph:
    """A tree of shortest histories, and counts.

    parents, moves: of each state but the initial one, an i32[N] for each level. expanded: the
    number of levels from which every move has been taken. transitions, illegal: how many moves of
    the legal and of the illegal alphabet were taken; an illegal one is always refused. outcomes:
    how often a kind of move had an outcome.
    """

    parents: list[Ints] = field(factory=list)
    moves: list[Ints] = field(factory=list)
    expanded: int = 0
    transitions: int = 0
    illegal: int = 0
    outcomes: Counter[str] = field(factory=Counter)

    @property
    def levels(self) -> list[int]:
        """The number of states at each depth."""
        return [1, *map(len, self.parents)]

    @property
    def states(self) -> int:
        """The number of states found so far."""
        return sum(self.levels)

    @property
    def depth(self) -> int:
        """The length of a shortest history to the farthest state."""
        return len(self.parents)

    @property
    def complete(self) -> bool:
        """Whether no state is left to be expanded."""
        return self.expanded > self.depth

    def add_level(self, parents: Ints, moves: Ints) -> None:
        """Record that the last level is expanded, and add its new states: parents, moves i32[N]."""
        self.expanded += 1
        if len(parents):
            self.parents.append(parents.astype(np.int32))
            self.moves.append(moves.astype(np.int32))

    def history(self, state: int) -> tuple[int, ...]:
        """The moves of a shortest history from the initial state to this one."""
        parents = np.concatenate([np.zeros(1, np.int32), *self.parents])
        moves = np.concatenate([np.zeros(1, np.int32), *self.moves])
        taken: list[int] = []
        while state:
            taken.append(int(moves[state]))
            state = int(parents[state])
        return tuple(reversed(taken))


def save(
    graph: Graph, path: Path, about: dict[str, object], *, extra: dict[str, object] | None = None
) -> None:
    """Write a checkpoint; a crash leaves the last one or this one, never half of it.

    about: plain data that must be the same in a run that resumes it. extra: further plain data.
    """
    header = {
        "format": FORMAT,
        "about": about,
        "extra": extra or {},
        "levels": graph.levels[1:],
        "expanded": graph.expanded,
        "transitions": graph.transitions,
        "illegal": graph.illegal,
        "outcomes": dict(graph.outcomes),
    }
    content = BytesIO()
    np.savez_compressed(
        content,
        header=np.frombuffer(json.dumps(header).encode(), np.uint8),
        parents=np.concatenate([np.zeros(0, np.int32), *graph.parents]),
        moves=np.concatenate([np.zeros(0, np.int32), *graph.moves]),
    )
    atomic.write(path, content.getvalue())


def load(path: Path, about: dict[str, object]) -> tuple[Graph, dict[str, Any]] | None:
    """The graph of a checkpoint and its extra data; None if there is no such file.

    Raises InvalidInput if it is of another exploration, damaged, or no checkpoint.
    """
    if not path.exists():
        return None
    try:
        with path.open("rb") as file, np.load(file, allow_pickle=False) as held:
            data = json.loads(held["header"].tobytes())
            parents, moves = held["parents"], held["moves"]
    except OSError as error:
        raise _unusable(path, error.strerror or "not an archive", about) from error
    except Exception as error:  # a damaged file fails in any way: zip, zlib, JSON, numpy
        raise _unusable(path, "a file that is damaged, or no checkpoint", about) from error
    try:
        header = _header(data)
        graph = Graph(
            parents=_split(parents, header.levels),
            moves=_split(moves, header.levels),
            expanded=header.expanded,
            transitions=header.transitions,
            illegal=header.illegal,
            outcomes=Counter(header.outcomes),
        )
        _check(graph)
    except (ValueError, TypeError) as error:
        raise _unusable(path, clipped(str(error)), about) from error
    if header.about != about:
        raise _unusable(path, _differing(header.about, about), about)
    return graph, header.extra


@frozen
class _Header:
    """The plain data of a checkpoint, beside its arrays."""

    about: dict[str, object]
    extra: dict[str, Any]
    levels: list[int]
    expanded: int
    transitions: int
    illegal: int
    outcomes: dict[str, int]


def _header(data: Any) -> _Header:
    """Make a header from plain data. Raises ValueError or TypeError."""
    names = ("format", *(one.name for one in fields(_Header)))
    lacking = [name for name in names if name not in checked(data, dict)]
    if lacking:
        raise ValueError(f"a checkpoint that lacks {', '.join(lacking)}")
    if data["format"] != FORMAT:
        raise ValueError(f"a checkpoint of format {shown(data['format'])}, not {FORMAT}")
    counts = [data["expanded"], data["transitions"], data["illegal"]]
    counts += [*checked(data["levels"], list), *checked(data["outcomes"], dict).values()]
    if not all(type(count) is int and 0 <= count < MOST for count in counts):
        raise ValueError("a checkpoint with a count that is negative or no integer")
    if not all(data["levels"]):
        raise ValueError("a checkpoint with an empty level")
    made = {name: data[name] for name in names[1:]}
    return _Header(
        **made | {"about": checked(data["about"], dict), "extra": checked(data["extra"], dict)}
    )


def _check(graph: Graph) -> None:
    """Check that the parent of every state is one level above it. Raises ValueError."""
    if graph.expanded not in {graph.depth, graph.depth + 1}:
        raise ValueError(f"a checkpoint of {graph.depth} levels, {graph.expanded} expanded")
    first, met = 0, 1
    for parents, moves in zip(graph.parents, graph.moves, strict=True):
        if parents.min() < first or parents.max() >= met or moves.min() < 0:
            raise ValueError("a checkpoint with a state whose parent is not one level above it")
        first, met = met, met + len(parents)


def _differing(found: Mapping[str, object], about: Mapping[str, object]) -> str:
    names = sorted({*found, *about})
    told = [
        f"{name} {shown(found.get(name))}" for name in names if found.get(name) != about.get(name)
    ]
    return clipped(f"a checkpoint of {', '.join(told)}", 200)


def names(mask: int) -> str:
    """The names of the reasons in a mask, one bit each, or "done"."""
    found = [reason.name for reason in Reason if mask >> reason.value & 1]
    return " or ".join(found) or "done"


def _split(numbers: Ints, sizes: list[int]) -> list[Ints]:
    if numbers.dtype != np.int32 or numbers.ndim != 1 or sum(sizes) != len(numbers):
        raise ValueError(f"a checkpoint with arrays that do not fit {sum(sizes)} states")
    return np.split(numbers, np.cumsum(sizes)[:-1]) if sizes else []


def _unusable(path: Path, seen: str, about: dict[str, object]) -> InvalidInput:
    return InvalidInput(
        f"checkpoint {path}",
        seen=seen,
        allowed=clipped(f"a checkpoint of {_differing(about, {})[16:]}", 240),
        remedy="Delete it, or name another with --checkpoint.",
    )
