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
    CHUNKS,
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


@frozen(repr=False)
class Reserve:
    """A slot begins an empty sequence, without tokens and without cells.

    slot: the slot to take; None: the lowest unused one. context: what, beside its tokens, decides
    what its cells hold, such as an adapter or a salt, as a number: a hit finds only pages that were
    published under the same one. Without the rung prefix it means nothing.
    """

    slot: Name | None = field(default=None, validator=NAME_OR_ANY)
    context: int = field(default=0, validator=INT32)

    def __repr__(self) -> str:
        """Without the context of an engine that has none."""
        context = f", context={self.context}" if self.context else ""
        return f"Reserve(slot={self.slot}{context})"


@frozen
class Append:
    """Tokens become known at the end of a sequence. Nothing is allocated or written.

    slot: the slot of the sequence. tokens: the tokens, in order; there may be none.
    """

    slot: Name = field(validator=NAME)
    tokens: Tokens = field(validator=TOKENS)


@frozen
class Allocate:
    """The next positions of one or more sequences get cells, and `allocated` rises by their number.

    Each position that is a multiple of `page_size` takes a free page, which becomes the next entry
    of the row; its count becomes 1. The tokens of these positions need not be known yet. The policy
    "lowest" takes the lowest free pages, by slot and then by position.

    batch: (slot, position) pairs in any order; None is padding.
    """

    batch: Batch = field(validator=BATCH)


@frozen
class Write:
    """K and V of the next positions of one or more sequences are stored in their cells.

    `written` rises by their number, and `committed` to the cells that are written and whose tokens
    are known: those of proposed tokens wait for Commit.

    batch: (slot, position) pairs in any order; None is padding.
    """

    batch: Batch = field(validator=BATCH)


@frozen
class Sample:
    """The model reads the history of a sequence and draws its next token.

    slot: the slot of the sequence. draw: the random number of this token; 0 is greedy.
    """

    slot: Name = field(validator=NAME)
    draw: int = field(default=0, validator=DRAW)


@frozen
class Free:
    """A sequence ends and its slot becomes unused. Every count of its pages falls by 1.

    A page whose count becomes 0 is free, and its cells die. The queued and proposed tokens of the
    slot are dropped. An output that it left stays.

    slot: the slot of the sequence.
    """

    slot: Name = field(validator=NAME)


@frozen
class Clone:
    """A second sequence with the same tokens and the same cells begins in another slot.

    Full pages are shared: they stand in both rows, and their counts rise by 1. A partial last page
    is copied to a free page. Queued tokens of the parent are queued for the child too, behind all
    others. The child belongs to the request of its parent, with the same parameters.

    parent: the slot to copy. child: the slot to take; None: the lowest unused one. choice: the
    number of the child among the choices of the parent's request.
    """

    parent: int = field(validator=SLOT)
    child: int | None = field(default=None, validator=SLOT_OR_ANY)
    choice: int = field(default=0, validator=INT32)


@frozen
class Assign:
    """A slot is given a prompt, whose tokens become known. No cell is allocated or written.

    With the capacity policy `reserve="request"` the row is extended by free pages until it covers
    the prompt and its `max_new` tokens; otherwise no page is taken.

    slot: the slot. prompt: its tokens. params: when it stops and how it draws. request, choice: the
    pair that names the sequence and its output.
    """

    slot: int = field(validator=SLOT)
    prompt: Tokens = field(validator=PROMPT)
    params: Params = field(validator=a(Params))
    request: int = field(validator=INT32)
    choice: int = field(default=0, validator=INT32)


@frozen
class FreeFinished:
    """Every finished sequence is freed, as by Free. Without one, nothing happens."""


@frozen
class Reset:
    """Every sequence, queued token, request and output is forgotten: the engine is as new.

    mode: PHYSICAL also zeroes the pool, which cannot be observed.
    """

    mode: ResetMode = field(default=ResetMode.LOGICAL, validator=a(ResetMode))


@frozen
class TakeOutputs:
    """The caller takes the finished outputs, and none is left."""


@frozen
class Enqueue:
    """A given token becomes known at the end of a sequence, and waits in the queue for a round.

    slot: the slot of the sequence. token: the token.
    """

    slot: int = field(validator=SLOT)
    token: int = field(validator=INT32)


@frozen
class Pack:
    """The oldest queued tokens, at most `limits.round_tokens`, leave the queue for the caller."""


@frozen
class Purge:
    """The queued tokens of a slot leave the queue. They stay known, or proposed.

    slot: the slot of the sequence.
    """

    slot: int = field(validator=SLOT)


@frozen
class Prefill:
    """Requests begin: each prompt is written, further choices are cloned, and each draws a token.

    A request takes the lowest unused slots, one for each choice. A drawn token is queued, or ends
    its sequence and leaves an output; finished sequences are then freed as the cleanup mode says.

    requests: the requests, in order.
    """

    requests: tuple[Request, ...] = field(validator=tuple_of(Request))


@frozen
class Round:
    """One decode round: queued tokens, at most `limits.round_tokens`, get cells and are written.

    Each slot whose last known token is written by it draws its next one. That is queued, or ends
    the sequence and leaves an output. Finished sequences are then freed as the cleanup mode says.
    """


@frozen
class MixedRound:
    """A round that also reads chunks of prompts: known tokens that have no cells yet.

    Each chunk is the next tokens of a slot. They are written beside the queued tokens, at most
    `limits.round_tokens` in all. A slot whose last known token is written draws its next one, as in
    Round: so the last chunk of a prompt alone draws.

    chunks: pairs (slot, count), each slot once.
    """

    chunks: tuple[tuple[int, int], ...] = field(validator=CHUNKS)


@frozen
class Generate:
    """Rounds, at most `limits.rounds`, until one would be refused."""


@frozen
class Propose:
    """Draft tokens follow the tokens of a sequence. They are queued, and proposed: not known.

    Their cells can be allocated and written, but are not committed.

    slot: the slot of the sequence. tokens: the drafts, in order.
    """

    slot: int = field(validator=SLOT)
    tokens: Tokens = field(validator=PROMPT)


@frozen
class Commit:
    """The proposed tokens below `length` become known, and `committed` becomes `length`.

    slot: the slot of the sequence. length: the number of cells that are final.
    """

    slot: int = field(validator=SLOT)
    length: int = field(validator=INT32)


@frozen
class Truncate:
    """Cells and proposed tokens from `length` on are cut off: `allocated` becomes `length`.

    `written` becomes `length` if it was above. Pages without a cell are released, and the queued
    tokens that were cut off leave the queue. Known tokens stay.

    slot: the slot of the sequence. length: the number of cells that stay.
    """

    slot: int = field(validator=SLOT)
    length: int = field(validator=INT32)


@frozen
class Release:
    """The pages of a slot whose cells all lie before position `before` are released.

    Their row entries name no page any more, and `first_page` becomes their number.

    slot: the slot of the sequence. before: the first position whose page stays.
    """

    slot: int = field(validator=SLOT)
    before: int = field(validator=INT32)


@frozen
class Hit:
    """The pages of the index that hold the first `length` tokens of a slot become its first pages.

    Nothing is computed: the cells are allocated, written and committed at once. Pages that were
    reserved for these cells return. The key of a page is the context of the slot and all tokens up
    to the end of the page, compared one by one.

    slot: a slot whose tokens are known, and without cells. length: the number of cells, whole
    pages, fewer than its tokens.
    """

    slot: int = field(validator=SLOT)
    length: int = field(validator=INT32)


@frozen
class Share:
    """The first pages of another slot, of the same tokens and context, become those of a slot.

    As by Hit, but the caller names the slot that has the pages, and no index is asked.

    parent: the slot that has the pages. slot: a slot whose tokens are known, and without cells.
    length: the number of cells, whole pages, fewer than its tokens.
    """

    parent: int = field(validator=SLOT)
    slot: int = field(validator=SLOT)
    length: int = field(validator=INT32)


@frozen
class Publish:
    """The whole pages of a slot below `length` enter the index, each under its key.

    A key that the index has already keeps its page. A page enters only behind the page before it.

    slot: the slot of the sequence. length: a number of committed cells.
    """

    slot: int = field(validator=SLOT)
    length: int = field(validator=INT32)


@frozen
class Merge:
    """A row entry moves from a page to the page of the index with the same key.

    The counts of the two pages move with it. Other rows that name the old page keep it.

    slot: the slot of the sequence. entry: the number of the entry in its row.
    """

    slot: int = field(validator=SLOT)
    entry: int = field(validator=INT32)


@frozen
class Evict:
    """An idle page leaves the index, and every page of the index that extends it before it.

    Those that no row names become free, and their cells die.

    tokens, context: the key of the page.
    """

    tokens: Tokens = field(validator=PROMPT)
    context: int = field(default=0, validator=INT32)


@frozen
class Drop:
    """The index becomes empty, since the weights change. Idle pages become free.

    Sequences go on. What a slot has written before is never published or merged.
    """


@frozen
class Preempt:
    """Every slot of a request whose choice has not finished is freed, as by Free.

    The caller keeps the tokens; the choices go on in other slots later, see Replay. A choice that
    has finished keeps its slot and its output.

    request: the id of the request.
    """

    request: int = field(validator=INT32)


@frozen
class Replay:
    """Tokens that were drawn before become known again. None is drawn, queued or written.

    They follow the prompt of a slot, or what was replayed before; chunks read them.

    slot: the slot of the sequence. tokens: the tokens, in order.
    """

    slot: int = field(validator=SLOT)
    tokens: Tokens = field(validator=PROMPT)


@frozen
class Submit:
    """A request joins the waiting ones, as the last.

    request: the request.
    """

    request: Request = field(validator=a(Request))


@frozen
class Admit:
    """Waiting requests, from the oldest, as many as fit, are prefilled as by Prefill.

    Each reserves all pages that it can ever hold, until none of its choices holds a slot.
    """


@frozen
class Dispatch:
    """A step begins: the next positions of some slots get cells. Nothing is written or drawn yet.

    Their tokens leave the queue, are known without being queued, or are drawn by a step in flight.
    A slot whose last token, known or to be drawn, is among them draws its next one in this step.
    The step keeps its positions and the pages of its rows, whatever happens to the slots meanwhile.

    chunks: pairs (slot, count), each slot once, at most `limits.round_tokens` in all.
    """

    chunks: tuple[tuple[int, int], ...] = field(validator=CHUNKS)


@frozen
class Retire:
    """The device does the oldest step that it has not done: K and V are written, tokens are drawn.

    A drawn token is proposed. Of a slot that has ended since the dispatch nothing is done.
    """


@frozen
class Deliver:
    """The outcome of the oldest step in flight becomes known, and the step is over.

    The cells that it wrote are committed, and its drawn tokens are known. Each is queued, unless a
    later step has its position already, or ends its sequence and leaves an output. What a later
    step does past such an end is cut off. Finished sequences are then freed as the cleanup mode
    says.
    """


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
    | Hit
    | Share
    | Publish
    | Merge
    | Evict
    | Drop
    | Assign
    | FreeFinished
    | Reset
    | TakeOutputs
    | Enqueue
    | Pack
    | Purge
    | Prefill
    | Round
    | MixedRound
    | Generate
    | Preempt
    | Replay
    | Submit
    | Admit
    | Dispatch
    | Retire
    | Deliver
)
"""Every action; `spec.ladder` says which rung adds it."""
