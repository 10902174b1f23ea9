"""What an exploration has found: a tree of shortest histories, and counts.

A state is known by its number, in breadth-first order. For each the graph keeps from which state
and by which move it was first reached; that is enough to write down a shortest history, and to
rebuild every state after an interruption.
"""

import json
import os
from collections import Counter
from pathlib import Path
from typing import Any, Final

import numpy as np
from attrs import define, field

from spec.vocabulary import InvalidInput, Reason

FORMAT: Final = 1
Ints = np.ndarray[Any, np.dtype[np.int32]]


@define
class Graph:
    """parents, moves: of each state but the initial one, level after level. levels: their sizes.

    expanded: levels whose moves have all been taken. transitions, outcomes: of those; illegal: how
    many actions more that a caller must not ask were tried, each a refusal.
    """

    parents: list[Ints] = field(factory=list)
    moves: list[Ints] = field(factory=list)
    expanded: int = 0
    transitions: int = 0
    illegal: int = 0
    outcomes: Counter[str] = field(factory=Counter)

    @property
    def levels(self) -> list[int]:
        """How many states there are at each depth."""
        return [1, *map(len, self.parents)]

    @property
    def states(self) -> int:
        """How many states have been met."""
        return sum(self.levels)

    @property
    def depth(self) -> int:
        """The moves that the farthest state needs."""
        return len(self.parents)

    @property
    def complete(self) -> bool:
        """Whether nothing is left to be explored."""
        return self.expanded > self.depth

    def add_level(self, parents: Ints, moves: Ints) -> None:
        """The last level is expanded, and these states are new."""
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

    about: what must be the same for it to be of use. extra: what else to keep; plain data.
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
    path.parent.mkdir(parents=True, exist_ok=True)
    unfinished = path.with_name(path.name + ".new")
    with unfinished.open("wb") as file:
        np.savez_compressed(
            file,
            header=np.frombuffer(json.dumps(header).encode(), np.uint8),
            parents=np.concatenate([np.zeros(0, np.int32), *graph.parents]),
            moves=np.concatenate([np.zeros(0, np.int32), *graph.moves]),
        )
        file.flush()
        os.fsync(file.fileno())
    unfinished.replace(path)


def load(path: Path, about: dict[str, object]) -> tuple[Graph, dict[str, Any]] | None:
    """The graph of a checkpoint and what else it kept, or None if there is none.

    Raises InvalidInput if it is of another exploration, or no checkpoint at all.
    """
    if not path.exists():
        return None
    try:
        with path.open("rb") as file, np.load(file, allow_pickle=False) as held:
            header = json.loads(held["header"].tobytes())
            parents, moves = held["parents"], held["moves"]
        sizes, found = header["levels"], header["about"]
        graph = Graph(
            parents=_split(parents, sizes),
            moves=_split(moves, sizes),
            expanded=header["expanded"],
            transitions=header["transitions"],
            illegal=header["illegal"],
            outcomes=Counter(header["outcomes"]),
        )
    except Exception as error:  # a damaged file fails in any way: zip, zlib, JSON, numpy
        raise _unusable(path, f"a file that is none ({type(error).__name__})", about) from error
    if header["format"] != FORMAT or found != about:
        raise _unusable(path, str(found), about)
    return graph, header["extra"]


def names(mask: int) -> str:
    """The names of the reasons in a mask, one bit each, or "done"."""
    found = [reason.name for reason in Reason if mask >> reason.value & 1]
    return " or ".join(found) or "done"


def _split(numbers: Ints, sizes: list[int]) -> list[Ints]:
    if sum(sizes) != len(numbers):
        raise ValueError(f"{len(numbers)} states, should be {sum(sizes)}")
    return np.split(numbers, np.cumsum(sizes)[:-1]) if sizes else []


def _unusable(path: Path, seen: str, about: dict[str, object]) -> InvalidInput:
    return InvalidInput(
        f"checkpoint {path}",
        seen=seen,
        allowed=f"a checkpoint of {about}",
        remedy="Delete it, or name another with --checkpoint.",
    )
