"""The protocol of a scheduler that plans steps for a worker, and a worker that knows only plans.

A step is dispatched before earlier ones are delivered: up to `lag` steps are open. The worker runs
steps in the order of their dispatch. It holds a tag for each cell, the prefix that the cell was
computed from, and its model draws the next token of a text. What a plan does not say, it does not
know: rows, the number of cells that are there already, and the tokens of a request come from plans,
and from what it has drawn itself.
"""

from collections.abc import Mapping, Sequence
from typing import Protocol

from attrs import Factory, define, frozen

from conformance.harnesses.workloads import Broken
from spec import model
from spec.attention import visible
from spec.vocabulary import INVALID, FinishReason, Request, Tokens

Pages = tuple[int, ...]


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
    has to take the request anew, at first or after a preemption.
    """

    request: int
    tables: tuple[Pages, ...]
    start: int
    count: int
    text: Tokens | None = None


Plan = tuple[Row, ...]


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
    """

    groups: Sequence[Group]
    pages: int
    slots: int
    tokens: int
    max_len: int
    lag: int
    priorities: bool

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

    def deliver(self, drawn: Mapping[int, int]) -> Mapping[int, Finished]:
        """Take what the oldest open step has drawn, by request; return the requests that end."""
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
    """Runs plans. cells: by (page, offset), the group, the context and the prefix.

    texts, contexts: by request.
    """

    groups: Sequence[Group]
    cells: dict[tuple[int, int], tuple[int, int, Tokens]] = Factory(dict)
    texts: dict[int, Tokens] = Factory(dict)
    contexts: dict[int, int] = Factory(dict)

    def run(self, plan: Plan) -> dict[int, int]:
        """Compute a step: write the cells of all rows, read, and draw. Raises Broken.

        Returns the token that was drawn for each request whose text has been read to its end.
        """
        for row in plan:
            if row.text is not None:
                self.texts[row.request] = row.text
            known = len(self.texts.get(row.request, ()))
            if not 0 < row.count <= known - row.start:
                where = f"request {row.request}: {row.count} positions from {row.start} on"
                raise Broken("Q", f"{where} are planned, of {known} known tokens")
        self._write(plan)
        for row in plan:
            self._read(row)
        return {row.request: self._drawn(row) for row in plan if self._ends(row)}

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

    def _tag(self, row: Row, group: int, position: int) -> tuple[int, int, Tokens]:
        """What the cell of a position has to hold."""
        text = self.texts[row.request][: position + 1]
        return group, self.contexts.get(row.request, 0), text

    def _cell(self, row: Row, group: int, position: int) -> tuple[int, int]:
        """The page and the offset of a position in a group."""
        table, (index, offset) = row.tables[group], divmod(position, self.groups[group].page_size)
        if index >= len(table) or table[index] == INVALID:
            raise Broken("ROW", f"{_at(row, position)}: group {group} has no page for it")
        return table[index], offset

    def _ends(self, row: Row) -> bool:
        return row.start + row.count == len(self.texts[row.request])

    def _drawn(self, row: Row) -> int:
        text = self.texts[row.request]
        token = model.next_token(text, 0)
        self.texts[row.request] = (*text, token)
        return token


def _at(row: Row, position: int) -> str:
    return f"request {row.request}, position {position}"
