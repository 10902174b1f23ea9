"""Every action of every rung, as values. A rung says which of them it accepts.

An action that names no slot where it could (`slot=None`, `child=None`) takes the lowest free one.
"""

from collections.abc import Hashable

from attrs import frozen

from spec.table import Batch
from spec.vocabulary import Params, Request, ResetMode, Tokens
from spec.vocabulary.request import require_tokens

Name = Hashable
"""What a sequence is called: a slot, or above the scheduler a (request, choice) pair."""


@frozen
class Reserve:
    """Begin an empty sequence."""

    slot: Name | None = None


@frozen
class Append:
    """Tokens become known; nothing is allocated or written."""

    slot: Name
    tokens: Tokens


@frozen
class Allocate:
    """Cells are given to the next positions of one or more sequences."""

    batch: Batch


@frozen
class Write:
    """K and V of the next positions of one or more sequences are computed and stored."""

    batch: Batch


@frozen
class Sample:
    """The model reads the history of a sequence and draws its next token."""

    slot: Name
    draw: int = 0


@frozen
class Free:
    """A sequence ends; what it alone held is dead."""

    slot: Name


@frozen
class Clone:
    """A second sequence with the same history: full pages shared, a partial last page copied.

    choice: the child's number among the choices of its request; only the lifecycle and above, where
    sequences belong to requests, look at it.
    """

    parent: int
    child: int | None = None
    choice: int = 0


@frozen
class Assign:
    """A reserved slot is given a prompt, and belongs to a choice of a request."""

    slot: int
    prompt: Tokens
    params: Params
    request: int
    choice: int = 0

    def __attrs_post_init__(self) -> None:
        require_tokens("Assign.prompt", self.prompt)


@frozen
class FreeFinished:
    """Every finished sequence is freed."""


@frozen
class Reset:
    """Everything is forgotten. PHYSICAL also zeroes the pool, which nobody can observe."""

    mode: ResetMode = ResetMode.LOGICAL


@frozen
class TakeOutputs:
    """The caller takes the finished outputs."""


@frozen
class Enqueue:
    """A known token becomes the next of a sequence, and waits to be decoded."""

    slot: int
    token: int

    def __attrs_post_init__(self) -> None:
        require_tokens("Enqueue.token", (self.token,))


@frozen
class Pack:
    """At most `limits.round_tokens` queued tokens leave the queue, for the caller to decode."""


@frozen
class Purge:
    """The queued tokens of a slot are dropped."""

    slot: int


@frozen
class Prefill:
    """Prompts are read at once; each choice forks and draws its first token."""

    requests: tuple[Request, ...]


@frozen
class Round:
    """One decode round: pack, allocate, write, attend, sample, finish, clean up."""


@frozen
class Generate:
    """At most `limits.rounds` decode rounds; stops before the first that would be refused."""


@frozen
class Submit:
    """A request joins those waiting, if it can ever fit."""

    request: Request


@frozen
class Admit:
    """As many waiting requests as fit, in order of arrival, are prefilled."""
