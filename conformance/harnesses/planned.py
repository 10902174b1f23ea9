"""The protocol of a scheduler that plans steps for a worker, and a worker that knows only plans.

A step is dispatched before earlier ones are delivered: up to `lag` steps are open. The worker runs
steps in the order of their dispatch. It holds a tag for each cell, the prefix that the cell was
computed from, and its model draws the next token of a text. What a plan does not say, it does not
know: rows, the number of cells that are there already, and the tokens of a request come from plans,
and from what it has drawn itself.

A plan may try drafts behind the known tokens of a request. The worker computes their cells too, and
keeps as many drafts as its model would have drawn itself, and one token more. While steps are open
a scheduler takes all drafts in them for kept: the worker, which knows better, begins so many
positions earlier.
"""

from collections.abc import Mapping, Sequence, Set
from functools import lru_cache
from typing import Final, Protocol

from attrs import Factory, define, evolve, frozen

from conformance.harnesses.workloads import Broken
from spec import model
from spec.attention import visible
from spec.vocabulary import INVALID, FinishReason, Request, Tokens
from spec.vocabulary.integers import VOCABULARY

Pages = tuple[int, ...]
OWN: Final = -1
"""In place of a draft in a plan: what the worker itself has proposed for that place, if any."""


@frozen
class Group:
    """Layers that share rows. page_size: cells in a page. window: as in `Geometry`."""

    page_size: int
    window: int | None = None


@frozen
class Row:
    """One request in a plan.

    request: its id. tables: its row of pages in each group; INVALID where a page is released.
    start, count: the positions that the step computes. text: all its known tokens, if the worker
    has to take the request anew, at first or after a preemption. drafts: the tokens of the last
    positions, if these are behind the known ones.
    """

    request: int
    tables: tuple[Pages, ...]
    start: int
    count: int
    text: Tokens | None = None
    drafts: Tokens = ()


Plan = tuple[Row, ...]


@frozen
class Drawn:
    """What a step has drawn for a request whose text it has read to its end.

    tokens: the drafts that were kept, and one token more. rejected: the number of other drafts.
    proposed: drafts for the next step.
    """

    tokens: Tokens
    rejected: int = 0
    proposed: Tokens = ()


Key = tuple[int, int, Tokens]
"""What a cell or a page holds: its group, the context, and the text up to its end."""


@frozen
class Finished:
    """A request that has ended. tokens: those that were generated, a stop token included."""

    tokens: Tokens
    reason: FinishReason


class Schedules(Protocol):
    """A scheduler. Its pages have ids from 0.

    groups: of layers. pages: in the pool. slots: requests that run at once. tokens: in a step.
    max_len: positions of a request. lag: steps that may be open when another is dispatched.
    priorities: whether requests with a lower priority begin first; else those that arrived first.
    drafts: the most that are tried of a request in a step. stops: the most that a request has.
    contexts: whether a request has a context. lacks: kinds of events that it has no call for, and
    what else of `plans.NEEDED` it never does.
    """

    groups: Sequence[Group]
    pages: int
    slots: int
    tokens: int
    max_len: int
    lag: int
    priorities: bool
    drafts: int
    stops: int
    contexts: bool
    lacks: Set[str]

    def arrive(self, request: Request, *, priority: int, context: int) -> None:
        """Take a request of one choice, decoded greedily; its stops have one token each.

        It ends at `max_len` if it may have more tokens. priority: the lower, the sooner, if the
        scheduler has priorities. context: pages are found again under the same one alone.
        """
        ...

    def abort(self, requests: Sequence[int]) -> None:
        """Forget these requests; nothing comes of it for those that have ended."""
        ...

    def dispatch(self) -> Plan:
        """Plan the next step; () if there is nothing to compute now."""
        ...

    def deliver(self, drawn: Mapping[int, Drawn]) -> Mapping[int, Finished]:
        """Take what the oldest open step has drawn, by request; return the requests that end."""
        ...

    def published(self) -> Mapping[int, Key]:
        """The pages that are found again by their keys, once the planned steps have run."""
        ...

    def forget(self, *, preempts: bool) -> bool:
        """Forget the contents of all pages: what was written before is never read again.

        preempts: requests that run are preempted, and what open steps have drawn may be kept or
        dropped; else nothing is done while requests hold pages. Returns whether it was done.
        """
        ...

    def is_busy(self) -> bool:
        """Whether there are requests that have not ended."""
        ...

    def held(self) -> Sequence[int]:
        """The pages that requests hold now."""
        ...

    def known(self) -> Sequence[int]:
        """The requests that the worker was given, and not told to forget."""
        ...


@define
class Worker:
    """Runs plans. drafts: the most that it proposes. cells: by (page, offset), what each holds.

    texts, contexts, proposed: by request.
    """

    groups: Sequence[Group]
    drafts: int = 0
    cells: dict[tuple[int, int], Key] = Factory(dict)
    texts: dict[int, Tokens] = Factory(dict)
    contexts: dict[int, int] = Factory(dict)
    proposed: dict[int, Tokens] = Factory(dict)

    def run(self, plan: Plan, rejected: Mapping[int, int]) -> dict[int, Drawn]:
        """Compute a step: write the cells of all rows, read, and draw. Raises Broken.

        rejected: by request, the drafts of open steps that were not kept.
        """
        rows = tuple(self._known(row, rejected.get(row.request, 0)) for row in plan)
        self._write(rows)
        for row in rows:
            self._read(row)
        return {row.request: self._drawn(row) for row in rows if self._ends(row)}

    def _known(self, row: Row, rejected: int) -> Row:
        """A row with the positions and drafts that it really has."""
        if row.text is not None:
            self.texts[row.request] = row.text
            self.proposed.pop(row.request, None)
        else:
            row = evolve(row, start=row.start - rejected)
        known = len(self.texts.get(row.request, ()))
        most = known - row.start
        tokens = row.count - len(row.drafts)
        if not 0 < tokens <= most or (row.drafts and tokens < most):
            where = f"request {row.request}: {row.count} positions from {row.start} on"
            behind = f", the last {len(row.drafts)} for drafts" if row.drafts else ""
            raise Broken("Q", f"{where} are planned{behind}, of {known} known tokens")
        own = self.proposed.get(row.request, ()) + row.drafts
        drafts = (own[at] if one == OWN else one for at, one in enumerate(row.drafts))
        return evolve(row, drafts=tuple(drafts))

    def check(self, published: Mapping[int, Key]) -> None:
        """The cells of published pages hold what their keys say. Raises Broken."""
        for page, (group, context, text) in published.items():
            size = self.groups[group].page_size
            for offset in range(size):
                wanted = group, context, text[: len(text) - size + 1 + offset]
                held = self.cells.get((page, offset), "nothing")
                if held != wanted:
                    where = f"page {page} is published as {wanted}, and its cell {offset}"
                    raise Broken("PC", f"{where} holds {held} after the planned steps have run")

    def _write(self, plan: Plan) -> None:
        written = dict[tuple[int, int], int]()
        for row in plan:
            for position in range(row.start, row.start + row.count):
                for group in range(len(self.groups)):
                    cell = self._cell(row, group, position)
                    if written.setdefault(cell, row.request) != row.request:
                        raise Broken("WX", f"{_at(row, position)} and {written[cell]} write {cell}")
                    self.cells[cell] = self._tag(row, group, position)

    def _read(self, row: Row) -> None:
        end = row.start + row.count
        for number, group in enumerate(self.groups):
            for position in range(visible(row.start, end, group.window).start, end):
                cell = self._cell(row, number, position)
                wanted = self._tag(row, number, position)
                if self.cells.get(cell) != wanted:
                    held = self.cells.get(cell, "nothing")
                    raise Broken("READ", f"{_at(row, position)} reads {cell}, which holds {held}")

    def _tag(self, row: Row, group: int, position: int) -> Key:
        """What the cell of a position has to hold."""
        text = (*self.texts[row.request], *row.drafts)[: position + 1]
        return group, self.contexts.get(row.request, 0), text

    def _cell(self, row: Row, group: int, position: int) -> tuple[int, int]:
        """The page and the offset of a position in a group."""
        table, (index, offset) = row.tables[group], divmod(position, self.groups[group].page_size)
        if index >= len(table) or table[index] == INVALID:
            raise Broken("ROW", f"{_at(row, position)}: group {group} has no page for it")
        return table[index], offset

    def _ends(self, row: Row) -> bool:
        return row.start + row.count - len(row.drafts) == len(self.texts[row.request])

    def _drawn(self, row: Row) -> Drawn:
        text = self.texts[row.request]
        before = len(text)
        for draft in (*row.drafts, None):
            text = (*text, next_token(text))
            if text[-1] != draft:
                break
        self.texts[row.request], self.proposed[row.request] = text, self._proposal(text)
        tokens = text[before:]
        return Drawn(tokens, len(row.drafts) + 1 - len(tokens), self.proposed[row.request])

    def _proposal(self, text: Tokens) -> Tokens:
        """Drafts for a text: often as many as may be, of which so many first ones are right."""
        mixed, drafts = sum(text) + len(text), text
        for place in range(self.drafts - (mixed % 5 == 0)):
            wrong = place == mixed % (self.drafts + 1)
            drafts = (*drafts, (next_token(drafts) + wrong) % VOCABULARY)
        return drafts[len(text) :]


@lru_cache(maxsize=1 << 16)
def next_token(text: Tokens) -> int:
    """The token that follows a text: requests of one history begin alike, as do many histories."""
    return model.next_token(text, 0)


def _at(row: Row, position: int) -> str:
    return f"request {row.request}, position {position}"
