"""The harness of prefix caching: a hit must behave like sharing.

    python -m conformance.harnesses.prefix_caching conformance.engines.vllm:prefixes --seconds 20

The specification has no rung for prefixes yet, and shares pages by cloning only. So an engine with
a prefix cache is driven here in place of its scheduler, and judged by the clauses that hold for all
engines:

- a hit page holds exactly the tokens of the prefix that hits it, full and written (CONTENT, SHARE);
- a page that is written has one name (WX), and each count is the number of its names (RC);
- a page that may be given out is named by no sequence, and listed once (UAF, CONS); none is lost;
- an engine that has room does not refuse, and a refusal changes nothing (ATOMIC).

Not checked: which page is evicted, how prefixes are hashed or matched, and whether every possible
hit is found. A run without a hit, an eviction or a refusal is undecided.
"""

import random
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from typing import Final, Protocol

from attrs import define, evolve, field, frozen

from conformance.harnesses import command
from conformance.verdict import Verdict
from spec import clauses
from spec.cells import POISON
from spec.view import View
from spec.vocabulary import INVALID, Geometry, Tokens
from spec.vocabulary.errors import KvspecError

ALPHABET: Final = 2
LENGTH: Final = 60
"""The number of operations of a history."""
NEEDED: Final = ("hit", "hit of an idle page", "page with two names", "page taken again",
                 "refused", "chunk", "ended")  # fmt: skip
"""The coverage that a run needs to hold."""


class Prefixes(Protocol):
    """An engine with prefix caching, driven in place of its scheduler.

    drops: whether a sequence may end with cells that were allocated and never computed; False for
    an engine whose scheduler never does that.
    """

    geometry: Geometry
    drops: bool

    def start(self, slot: int, tokens: Tokens, count: int) -> tuple[int, int] | None:
        """Look a prompt up, and allocate cells for about `count` of its tokens, one beyond the hit.

        Returns how many tokens were hit and how many have cells; None if there is no room, and then
        nothing has changed.
        """
        ...

    def grow(self, slot: int, tokens: Tokens, count: int) -> int | None:
        """Allocate cells for about `count` of the tokens in all, at least one more.

        Returns how many have cells now; None if there is no room.
        """
        ...

    def computed(self, slot: int, tokens: Tokens) -> None:
        """Note that K and V of every allocated cell are stored."""
        ...

    def end(self, slot: int, tokens: Tokens) -> None:
        """End the sequence; the pages that it shares stay."""
        ...

    def row(self, slot: int) -> tuple[int, ...]:
        """The pages of a sequence, in order of position."""
        ...

    def spare(self) -> Sequence[int]:
        """Every page that can be given out, cached or not, as often as it is listed."""
        ...

    def counts(self) -> tuple[int, ...] | None:
        """The count of each page; None if the engine keeps none."""
        ...


@frozen
class Start:
    """A prompt; its first `count` tokens at once."""

    slot: int
    tokens: Tokens
    count: int


@frozen
class Grow:
    """The next tokens of a prompt, or one more token."""

    slot: int
    count: int


@frozen
class Compute:
    """One pass of the model over all cells that were allocated since the last."""


@frozen
class End:
    """A sequence ends."""

    slot: int


Op = Start | Grow | Compute | End
Ops = tuple[Op, ...]
Make = Callable[[Geometry], Prefixes]


@define
class Live:
    """A sequence: its tokens, how many have cells, and how many of these are computed."""

    tokens: Tokens
    given: int
    written: int


class Broken(AssertionError):
    """A violated clause. clause: its id."""

    def __init__(self, clause: str, wrong: str) -> None:
        super().__init__(f"{clause}: {wrong}")
        self.clause = clause


@define
class Ledger:
    """The record that needs no engine: texts, and the last content stored in each cell."""

    engine: Prefixes
    seen: Counter[str]
    live: dict[int, Live] = field(factory=dict)
    cells: list[object] = field(init=False)
    stored: set[int] = field(factory=set)

    def __attrs_post_init__(self) -> None:
        """Nothing is stored yet."""
        geometry = self.engine.geometry
        self.cells = [POISON] * (geometry.pages * geometry.page_size)
        self._judge_pages()

    def take(self, op: Op) -> None:
        """Apply an operation if it is possible now; raises Broken."""
        before, room = self._shown(), len(self.engine.spare())
        done = True
        match op:
            case Start(slot, tokens, count) if slot not in self.live:
                done = self._start(slot, tokens, count)
            case Grow(slot, count) if self._settled(slot):
                done = self._grow(slot, count)
            case End(slot) if slot in self.live and (self._settled(slot) or self.engine.drops):
                self.engine.end(slot, self.live[slot].tokens[: self.live[slot].given])
                del self.live[slot]
                self.seen["ended"] += 1
            case Compute():
                self._compute()
        if not done:
            self.seen["refused"] += 1
            self._judge_refusal(op, before, room)
        self._judge_pages()

    def _start(self, slot: int, tokens: Tokens, count: int) -> bool:
        spare = set(self.engine.spare())
        started = self.engine.start(slot, tokens, count)
        if started is None:
            return False
        hit, given = started
        self.live[slot] = Live(tokens, given, hit)
        size = self.engine.geometry.page_size
        if hit % size or not 0 <= hit < len(tokens):
            raise Broken("SHARE", f"slot {slot} hit {hit} tokens of {len(tokens)}: no whole pages")
        shared = self.engine.row(slot)[: hit // size]
        self.seen["hit"] += bool(hit)
        self.seen["hit of an idle page"] += not spare.isdisjoint(shared)
        self._taken(slot, hit // size)
        return True

    def _grow(self, slot: int, count: int) -> bool:
        one, pages = self.live[slot], len(self.engine.row(slot))
        decoding = one.given == len(one.tokens)
        tokens = (*one.tokens, sampled(one.tokens)) if decoding else one.tokens
        end = min(len(tokens), one.given + max(count, 1))
        if end > self.engine.geometry.max_len:
            return True
        given = self.engine.grow(slot, tokens, end)
        if given is None:
            return False
        self.live[slot] = evolve(one, tokens=tokens, given=given)
        self.seen["chunk"] += not decoding
        self._taken(slot, pages)
        return True

    def _taken(self, slot: int, start: int) -> None:
        fresh = self.engine.row(slot)[start:]
        self.seen["page taken again"] += not self.stored.isdisjoint(fresh)

    def _compute(self) -> None:
        size = self.engine.geometry.page_size
        pending = [slot for slot in self.live if not self._settled(slot)]
        for slot in pending:
            one, row = self.live[slot], self.engine.row(slot)
            for position in range(one.written, one.given):
                page = row[position // size]
                for other in self._other_names(slot, page):
                    raise Broken("WX", f"slot {slot} writes page {page}, which slot {other} names")
                self.cells[page * size + position % size] = one.tokens[: position + 1]
                self.stored.add(page)
            one.written = one.given
        for slot in pending:
            self.engine.computed(slot, self.live[slot].tokens[: self.live[slot].given])
        shown = self._shown()
        self.seen["page with two names"] += any(count > 1 for count in shown.named.values())
        for clause, wrong in clauses.violations(shown):
            raise Broken(clause, wrong)

    def _other_names(self, slot: int, page: int) -> Iterator[int]:
        """Other slots that name a written page; a hit in the same pass reads it afterwards."""
        size = self.engine.geometry.page_size
        for other, one in self.live.items():
            row = self.engine.row(other)
            after = row[: one.written // size] if not self._settled(other) else ()
            if other != slot and page in row and page not in after:
                yield other

    def _settled(self, slot: int) -> bool:
        return slot in self.live and self.live[slot].given == self.live[slot].written

    def _shown(self) -> View:
        geometry, slots = self.engine.geometry, range(self.engine.geometry.slots)
        rows = [self.engine.row(slot) if slot in self.live else () for slot in slots]
        live = [self.live.get(slot, Live((), 0, 0)) for slot in slots]
        return View(
            geometry=geometry,
            counts=self.engine.counts(),
            used=tuple(slot in self.live for slot in slots),
            rows=tuple((*row, *[INVALID] * (geometry.pages_per_seq - len(row))) for row in rows),
            tokens=tuple(one.tokens for one in live),
            allocated=tuple(one.given for one in live),
            written=tuple(one.written for one in live),
            cells=tuple(self.cells),
        )

    def _judge_pages(self) -> None:
        """Every page is either spare or live, and counts are the number of its names."""
        shown, spare = self._shown(), Counter(self.engine.spare())
        for page in range(self.engine.geometry.pages):
            if spare[page] > 1:
                raise Broken("CONS", f"page {page} can be given out {spare[page]} times")
            if spare[page] and page in shown.named:
                raise Broken("UAF", f"page {page} can be given out, and a row names it")
            if not spare[page] and page not in shown.named:
                raise Broken("CONS", f"page {page} is lost: no row names it, and it is not spare")
        for clause, wrong in clauses.violations(evolve(shown, cells=None, written=None)):
            raise Broken(clause, wrong)

    def _judge_refusal(self, op: Op, before: View, room: int) -> None:
        after = self._shown()
        if before.rows != after.rows or before.counts != after.counts:
            raise Broken("ATOMIC", f"{op} was refused and changed the rows or the counts")
        if room != len(self.engine.spare()):
            left = len(self.engine.spare())
            raise Broken("CONS", f"{op} was refused; {room} pages were spare and {left} are")
        if self._most(op) <= room:
            raise Broken(
                "ATOMIC", f"{op} was refused, and {self._most(op)} of {room} pages are needed"
            )

    def _most(self, op: Op) -> int:
        """The largest number of pages that an operation can need, without any hit."""
        pages_for = self.engine.geometry.pages_for
        match op:
            case Start(_, tokens):
                return pages_for(len(tokens))
            case Grow(slot):
                one = self.live[slot]
                return pages_for(max(len(one.tokens), one.given + 1)) - len(self.engine.row(slot))
        return 0


def sampled(tokens: Tokens) -> int:
    """The next token of the model: a function of the text."""
    return (sum(tokens) + len(tokens) // 2) % (2 * ALPHABET)


def draw(chance: random.Random, geometry: Geometry) -> Iterator[Op]:
    """Random operations, with prompts that begin alike and often end at a page boundary."""
    size, most = geometry.page_size, geometry.max_len
    for _ in range(LENGTH):
        slot, kind = chance.randrange(geometry.slots), chance.random()
        if kind < 0.35:
            lengths = (size, size + 1, 2 * size, 2 * size + 1, 3 * size, most - 1, most // 2)
            length = max(1, min(chance.choice(lengths), most - 1))
            change = chance.choice((0, 0, length // 2, length - 1))
            first = chance.randrange(ALPHABET)
            tokens = [first + ALPHABET * (index >= change) for index in range(length)]
            yield Start(slot, tuple(tokens), chance.choice((length, length, max(1, length // 2))))
        elif kind < 0.65:
            yield Grow(slot, chance.choice((1, size, most)))
        elif kind < 0.85:
            yield Compute()
        else:
            yield End(slot)


def replay(make: Make, geometry: Geometry, ops: Sequence[Op], seen: Counter[str]) -> Broken | None:
    """Run a history from the start; return the violation, if there is one."""
    try:
        ledger = Ledger(make(geometry), seen)
        for op in ops:
            ledger.take(op)
    except Broken as broken:
        return broken
    except KvspecError:
        raise
    except Exception as error:
        return Broken("ATOMIC", f"the engine raised {type(error).__name__}: {error}")
    return None


def shrink(make: Make, geometry: Geometry, ops: Ops, clause: str) -> Ops:
    """A shorter history that violates the same clause."""
    size = len(ops) // 2
    while size:
        for start in range(len(ops) - size, -1, -size):
            fewer = ops[:start] + ops[start + size :]
            found = replay(make, geometry, fewer, Counter())
            if found is not None and found.clause == clause:
                ops = fewer
        size //= 2
    return ops


def geometries() -> tuple[Geometry, ...]:
    """Pools that two or three prompts fill."""
    return (
        Geometry(pages=8, slots=4, page_size=4, pages_per_seq=4),
        Geometry(pages=12, slots=4, page_size=1, pages_per_seq=8),
        Geometry(pages=9, slots=3, page_size=2, pages_per_seq=6),
    )


def check(make: Make, *, chosen: int, seconds: float) -> tuple[Verdict, int]:
    """Draw histories for `seconds`; return the verdict and their number. chosen: the seed."""
    make(geometries()[0])  # what it imports is no part of the time
    seen, runs, ended = Counter[str](), 0, time.process_time() + seconds
    while time.process_time() < ended:
        geometry = geometries()[runs % 3]
        ops = tuple(draw(random.Random(chosen + runs), geometry))
        found = replay(make, geometry, ops, seen)
        runs += 1
        if found is not None:
            least = shrink(make, geometry, ops, found.clause)
            print(f"{geometry}\n" + "\n".join(f"  {op}" for op in least))
            print(replay(make, geometry, least, Counter()) or found)
            return Verdict.FAILS, runs
    for name in NEEDED:
        print(f"  {seen[name]:>8}  {name}")
    missing = [name for name in NEEDED if not seen[name]]
    return Verdict.UNDECIDED if missing else Verdict.HOLDS, runs


if __name__ == "__main__":
    sys.exit(
        command.main(
            check,
            module="conformance.harnesses.prefix_caching",
            told=__doc__,
            engine="a function of a geometry",
            not_checked="which page is evicted, hashing, that a prefix which could be hit is",
        )
    )
