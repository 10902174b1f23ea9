"""The actions of all rungs, as values. The rules of a rung name the actions that it adds.

An action with `slot=None` or `child=None` takes the lowest free slot. A value that no state could
accept, such as a boolean for a slot, raises InvalidInput here. Any integer is a slot: the machine
refuses one that is out of range, as SLOT_RANGE.
"""

from attrs import field, frozen

from spec.table import Batch
from spec.vocabulary import Params, Request, ResetMode, Tokens
from spec.vocabulary.rules import (
    BATCH,
    DRAW,
    INT32,
    NAME,
    NAME_OR_ANY,
    PROMPT,
    SLOT,
    SLOT_OR_ANY,
    TOKENS,
    a,
    tuple_of,
)

Name = int | tuple[int, int]
"""The name of a sequence: a slot, or, where scheduling is lowered to naive, (request, choice)."""


@frozen
class Reserve:
    """Begin an empty sequence."""

    slot: Name | None = field(default=None, validator=NAME_OR_ANY)


@frozen
class Append:
    """Tokens become known; nothing is allocated or written."""

    slot: Name = field(validator=NAME)
    tokens: Tokens = field(validator=TOKENS)


@frozen
class Allocate:
    """Cells are given to the next positions of one or more sequences."""

    batch: Batch = field(validator=BATCH)


@frozen
class Write:
    """K and V of the next positions of one or more sequences are computed and stored."""

    batch: Batch = field(validator=BATCH)


@frozen
class Sample:
    """The model reads the history of a sequence and draws its next token."""

    slot: Name = field(validator=NAME)
    draw: int = field(default=0, validator=DRAW)


@frozen
class Free:
    """A sequence ends; cells that no other sequence holds die."""

    slot: Name = field(validator=NAME)


@frozen
class Clone:
    """A second sequence with the same history: full pages shared, a partial last page copied.

    choice: the child's number among the choices of its request; only lifecycle and higher rungs,
    where sequences belong to requests, use it.
    """

    parent: int = field(validator=SLOT)
    child: int | None = field(default=None, validator=SLOT_OR_ANY)
    choice: int = field(default=0, validator=INT32)


@frozen
class Assign:
    """A reserved slot is given a prompt, and belongs to a choice of a request."""

    slot: int = field(validator=SLOT)
    prompt: Tokens = field(validator=PROMPT)
    params: Params = field(validator=a(Params))
    request: int = field(validator=INT32)
    choice: int = field(default=0, validator=INT32)


@frozen
class FreeFinished:
    """Every finished sequence is freed."""


@frozen
class Reset:
    """Everything is forgotten. PHYSICAL also zeroes the pool, which cannot be observed."""

    mode: ResetMode = field(default=ResetMode.LOGICAL, validator=a(ResetMode))


@frozen
class TakeOutputs:
    """The caller takes the finished outputs."""


@frozen
class Enqueue:
    """A given token is appended to a sequence, and to the queue."""

    slot: int = field(validator=SLOT)
    token: int = field(validator=INT32)


@frozen
class Pack:
    """At most `limits.round_tokens` queued tokens leave the queue, for the caller to decode."""


@frozen
class Purge:
    """The queued tokens of a slot are dropped."""

    slot: int = field(validator=SLOT)


@frozen
class Prefill:
    """Prompts are written in one batch; then each choice forks and draws its first token."""

    requests: tuple[Request, ...] = field(validator=tuple_of(Request))


@frozen
class Round:
    """One decode round: pack, allocate, write, attend, sample, finish, clean up."""


@frozen
class Generate:
    """At most `limits.rounds` decode rounds; stops before the first that would be refused."""


@frozen
class Propose:
    """Draft tokens follow the known ones: cells may be given to them, but they are not final."""

    slot: int = field(validator=SLOT)
    tokens: Tokens = field(validator=PROMPT)


@frozen
class Commit:
    """The proposed tokens below `length` become known, and their written cells final."""

    slot: int = field(validator=SLOT)
    length: int = field(validator=INT32)


@frozen
class Truncate:
    """Cells and proposed tokens from `length` on are cut off; emptied pages are released."""

    slot: int = field(validator=SLOT)
    length: int = field(validator=INT32)


@frozen
class Release:
    """The whole pages of a slot whose cells all lie before position `before` return."""

    slot: int = field(validator=SLOT)
    before: int = field(validator=INT32)


@frozen
class Submit:
    """A request joins the waiting ones, if it can ever fit."""

    request: Request = field(validator=a(Request))


@frozen
class Admit:
    """As many waiting requests as fit, in order of arrival, are prefilled."""


Action = (
    Reserve
    | Append
    | Allocate
    | Write
    | Sample
    | Free
    | Clone
    | Propose
    | Commit
    | Truncate
    | Release
    | Assign
    | FreeFinished
    | Reset
    | TakeOutputs
    | Enqueue
    | Pack
    | Purge
    | Prefill
    | Round
    | Generate
    | Submit
    | Admit
)
"""Every action; `spec.ladder` says which rung adds it."""
