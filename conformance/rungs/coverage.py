"""Coverage of a run: actions with their outcomes, and corner states, where bugs live.

A sampled "holds" needs both the budget spent and every required item reached; the report names the
items that were not reached. Source: docs/sources.md, "Verdicts" and "Conditions that bugs need".
"""

from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator
from typing import Final

from attrs import evolve

from conformance.protocol import Action, Profile
from conformance.rungs.pages import (
    PAGE_REUSED,
    REFUSED,
    SHORT,
    SHORT_AHEAD,
    SLOT_REUSED,
    appended,
    pages_of,
)
from conformance.rungs.possible import (
    Kind,
    Outcome,
    Pair,
    as_item,
    asked,
    is_seldom,
    outcomes,
    pairs,
)
from conformance.rungs.record import (
    AHEAD,
    CHAINS,
    CHUNK_PAST_RING,
    EAGER_COPY,
    FOUR_STEPS,
    FREES,
    FULL_BESIDE,
    FULL_POOL,
    FULL_QUEUE,
    GIVES_BACK,
    GROWS_RELEASED,
    HITS,
    KEEPS,
    LAPS,
    LAZY,
    LONG_ROWS,
    MERGES_ASKED,
    ONE_SHORT,
    PART_ROUNDS,
    QUEUE_PAST_RING,
    REFUSAL,
    RELEASES,
    RELEASES_INSIDE,
    RESERVED,
    RINGS,
    SEVERAL_CELLS,
    SEVERAL_PAGES,
    SEVERAL_SLOTS,
    SHARED_FULL,
    SHORT_POOL,
    SHORT_ROUNDS,
    SINGLE_CELLS,
    THREE_CHOICES,
    THREE_OWNERS,
    THREE_SLOTS,
    TWO_SHORT,
    TWO_SLOTS,
    WHOLE_PAGE,
    WIDE_ROUNDS,
)
from conformance.rungs.registry import CORNERS, corners, refused_corners
from conformance.rungs.scheduling import CHOICES_SHORT, copies_of_choices
from conformance.rungs.sharing import SHARED, edge_corners
from conformance.rungs.window import fewest_released
from spec import ladder, pool
from spec.machines.actions import Dispatch, Merge
from spec.machines.pages import copying
from spec.state import State
from spec.table import Sequence
from spec.vocabulary import LAG, Capacity, CleanupMode, Geometry, Limits, Reason, default_limits

POISON: Final = "PoisonDead"
MACHINE: Final = ladder.machine(ladder.SERVING, "chunks")
"""The rules of the actions that may be refused for lack of pages, in every machine with a queue."""
FLYING: Final = ladder.machine("flights")
"""The same of a dispatch."""
POISONED: Final = "poisoned dead cells read past"


MOSTLY: Final = 9
"""An engine mostly refuses an action if it refuses more legal calls than this for each done."""


_DONE: Final = (None,)
EXPECTED: Final = 120
"""A run must reach a pair of steps that would have come so often by chance.

A pair that comes 25 times less often, since one step leaves little for the other, is then missing
in less than 1 % of runs: exp(-120 / 25).
"""
RARE_STEPS: Final = 200_000
"""A run must reach the rare refusals if it has at least so many steps."""


class Coverage:
    """Counts of actions, outcomes and corner states of one run.

    poisoned_nothing: how many poisonings that overwrite cells have changed none. withheld: how
    often an engine that may refuse more has refused a legal action, by class.
    """

    def __init__(self) -> None:
        self.corners: Counter[str] = Counter()
        self.poisoned_nothing = 0
        self.withheld: Counter[type] = Counter()
        self._steps: dict[tuple[type, frozenset[Reason]], int] = {}
        self.last: Kind | None = None
        self.pairs: Counter[Pair] = Counter()
        self._kinds: Counter[Kind] = Counter()
        self._outcomes: Counter[Outcome] = Counter()
        self._previous: dict[int, list[int]] = {}
        self._released: set[int] = set()

    @property
    def kinds(self) -> frozenset[type]:
        """The actions that were taken or refused."""
        return frozenset(kind for kind, _ in self._steps)

    @property
    def steps(self) -> int:
        """How many actions were taken or refused."""
        return sum(self._steps.values())

    @property
    def actions(self) -> Counter[str]:
        """How often each action was taken or refused, by its name."""
        found: Counter[str] = Counter()
        for (kind, _), times in self._steps.items():
            found[kind.__name__] += times
        return found

    @property
    def outcomes(self) -> Counter[str]:
        """How often each action was done, or refused for a reason."""
        return Counter({str(outcome): times for outcome, times in self._outcomes.items()})

    @property
    def mostly_withheld(self) -> list[str]:
        """The actions of which an engine has refused most of the legal calls, with the counts."""
        found = []
        for kind, refused in sorted(self.withheld.items(), key=lambda item: item[0].__name__):
            done = self._steps.get((kind, frozenset()), 0)
            if refused > MOSTLY * done:
                found.append(f"{kind.__name__}: refused {refused} of {refused + done} legal calls")
        return found

    def begin(self) -> None:
        """Another engine begins: none of its pages was released, and none of its slots used."""
        self._released.clear()
        self._previous.clear()
        self.last = None

    def record(
        self,
        before: State,
        action: Action,
        reasons: frozenset[Reason],
        after: State,
        *,
        pages: tuple[Collection[int], Collection[int]] | None = None,
    ) -> None:
        """Count one step.

        pages: those that the engine's rows name before and after it; None for those of the states,
        which an engine that takes any free page does not follow.
        """
        if reasons:
            short = _short(before, action) if Reason.OUT_OF_PAGES in reasons else ()
            found = [*short, *refused_corners(before, action, reasons)]
            self.count(type(action), reasons, found)
            return
        found = [*corners(before, action, after), *self._reuse(before, after)]
        found += _at_edge(before, action)
        if before.counts is not after.counts:
            found += [SHARED] * _shares(before, after)
            old, new = pages or (in_rows(before), in_rows(after))
            found += [PAGE_REUSED] * self._takes_again(frozenset(old), frozenset(new))
        self.count(type(action), reasons, found)

    def count(self, kind: type, reasons: frozenset[Reason], found: Iterable[str]) -> None:
        """Count one step of an action. reasons: why it was refused. found: the corners reached."""
        self._steps[kind, reasons] = self._steps.get((kind, reasons), 0) + 1
        for reason in reasons or _DONE:
            self._outcomes[Outcome(kind, reason)] += 1
        now = Kind(kind, bool(reasons))
        self._kinds[now] += 1
        if self.last is not None:
            self.pairs[self.last, now] += 1
        self.last = now
        if reasons:
            self.corners[REFUSED] += 1
        for corner in found:
            self.corners[corner] += 1

    def count_unasked(self, before: State, action: Action, after: State) -> None:
        """Count an action that an engine took by itself. It is no step of the run."""
        self._outcomes[Outcome(type(action), None)] += 1
        for corner in corners(before, action, after):
            self.corners[corner] += 1

    def times(self, outcome: Outcome) -> int:
        """How often an action had this outcome."""
        return self._outcomes[outcome]

    def most(self, kind: type, reasons: frozenset[Reason]) -> int:
        """How often an action was done or refused so; of several reasons, the one seen most."""
        return max(self._outcomes[Outcome(kind, reason)] for reason in reasons or _DONE)

    def times_next(self, now: Kind, last: Kind | None = None) -> int:
        """How often this came right after `last`; None: after the last step of all."""
        before = last or self.last
        return 0 if before is None else self.pairs[before, now]

    def lacking(self, pair: Pair) -> tuple[int, int]:
        """The less, the more this pair lacks: of equally rare ones, that of common steps."""
        return self.pairs[pair], -min(self._kinds[one] for one in pair)

    def expected(self, possible: Iterable[Pair], words: Collection[str]) -> list[Pair]:
        """Of these pairs of steps, those that a run of so many steps must reach.

        If each step were drawn without regard to the one before it, such a pair would have come
        EXPECTED times. words: see `offered_by`; the pairs that are seldom there are left out.
        """
        times, enough = self._kinds, max(1, EXPECTED * self.steps)
        often = [pair for pair in possible if times[pair[0]] * times[pair[1]] >= enough]
        return [pair for pair in often if not is_seldom(pair, words)]

    def poisoned(self) -> None:
        """Count a poisoning of dead cells."""
        self.corners[POISONED] += 1

    def coverable(self, offered: Iterable[str]) -> list[str]:
        """Every outcome and corner state that a run must reach where these words are true.

        offered: see `offered_by`; each action by its name and its outcomes.
        """
        words = frozenset(offered)
        return sorted(word for word in words if ": " in word) + [
            corner
            for corner, needs in CORNERS.items()
            if all(words.intersection(need.split("|")) for need in needs)
        ]

    def covered(self, coverable: Collection[str]) -> list[str]:
        """The items of `coverable` that the run has reached."""
        times = self.times_of_items
        return [item for item in coverable if times[item]]

    @property
    def times_of_items(self) -> Counter[str]:
        """How often each item was reached."""
        pairs = Counter({as_item(pair): times for pair, times in self.pairs.items()})
        return self.outcomes + self.corners + pairs

    def _reuse(self, before: State, after: State) -> Iterator[str]:
        """A slot with sequences that were longer, shorter, and longer again."""
        for slot, (old, new) in enumerate(zip(before.sequences, after.sequences, strict=True)):
            lengths = self._previous.setdefault(slot, [])
            if old is not None and old.written and _ended(old, new):
                lengths[:] = [*lengths[-1:], old.written]
            if new is not None and len(lengths) > 1 and lengths[-2] > lengths[-1] < new.written:
                yield SLOT_REUSED
                lengths.clear()

    def _takes_again(self, before: frozenset[int], after: frozenset[int]) -> bool:
        """Whether a page is taken after its release. before, after: the pages in use."""
        self._released |= before - after
        return not self._released.isdisjoint(after - before)


def possible_at(profile: Profile) -> tuple[tuple[Outcome, ...], frozenset[Pair]]:
    """The outcomes, and the pairs of steps, that are possible at the sizes of one engine.

    Of the actions that it is asked for.
    """
    words = conditions(
        profile,
        [profile.geometry],
        poisonable=False,
        cleanups=[profile.cleanup],
        limits=lambda _: profile.limits,
    )
    possible = asked(profile, words)
    return possible, pairs(possible, words)


def offered_by(
    profile: Profile,
    geometries: Iterable[Geometry],
    *,
    poisonable: bool,
    cleanups: Collection[CleanupMode] = tuple(CleanupMode),
    limits: Callable[[Geometry], Limits] = default_limits,
    rare: bool = True,
) -> frozenset[str]:
    """What an engine offers at these geometries, in the words with which corner states ask for it.

    The names of its actions, their outcomes that are possible, POISON if its dead cells can be
    overwritten, its capacity policy, and what the sizes and the cleanups allow. limits: those of a
    geometry. rare: also the outcomes that are rare.
    """
    words = conditions(profile, geometries, poisonable=poisonable, cleanups=cleanups, limits=limits)
    possible = [one for one, lacks in outcomes(profile, words).items() if lacks is None]
    words |= {str(one) for one in possible if rare or not one.is_rare}
    return words | {REFUSAL} if any(one.reason is not None for one in possible) else words


def conditions(
    profile: Profile,
    geometries: Iterable[Geometry],
    *,
    poisonable: bool,
    cleanups: Collection[CleanupMode],
    limits: Callable[[Geometry], Limits] = default_limits,
) -> frozenset[str]:
    """The words of `offered_by` on which it depends which outcomes are possible."""
    sizes = tuple(geometries)
    words = _sizes(sizes, profile.capacity).union(*[_edges(one, profile.capacity) for one in sizes])
    words = words.union(*[_fills(one, limits(one)) for one in sizes])
    words = words.union(*[_releases(one, profile.capacity) for one in sizes])
    words = words.union(*[_rings(one, profile.capacity, limits(one)) for one in sizes])
    words = words.union(*[_indexes(one) for one in sizes])
    words |= {GIVES_BACK} if any(_gives_back(one, profile.capacity) for one in sizes) else set()
    most = max((one.slots for one in sizes), default=0)
    holding = {
        POISON: poisonable,
        LAZY: profile.copy == "lazy",
        EAGER_COPY: profile.copy == "eager" and SEVERAL_CELLS in words,
        AHEAD: profile.lookahead > 0,
        MERGES_ASKED: Merge in profile.actions,
        RESERVED: profile.reserve == "request",
        TWO_SLOTS: most > 1,
        THREE_SLOTS: most > 2,
        KEEPS: CleanupMode.NONE in cleanups or (CleanupMode.END in cleanups and most > 1),
        FREES: bool({CleanupMode.END, CleanupMode.INCREMENTAL} & {*cleanups}),
    }
    words |= {word for word, holds in holding.items() if holds}
    if profile.batches != "several slots":
        words.discard(SEVERAL_SLOTS)
    return frozenset(words | {kind.__name__ for kind in profile.taken})


def _fills(sizes: Geometry, limits: Limits) -> set[str]:
    """Whether rows have tokens for a full queue, for more rounds than one call of the loop has.

    A row can have as many queued tokens as it has cells, but for one of the prompt, and one that
    the sequence must still be able to draw.
    """
    row = sizes.max_len - 2
    fills = {
        FULL_QUEUE: sizes.slots * row > limits.queue,
        FULL_BESIDE: (sizes.slots - 1) * row >= limits.queue,
        LONG_ROWS: row > limits.rounds,
        PART_ROUNDS: limits.round_tokens < min(limits.queue, row),
        SHORT_ROUNDS: limits.round_tokens < sizes.slots * (sizes.max_len - 1),
        WIDE_ROUNDS: limits.round_tokens > 1,
        FOUR_STEPS: sizes.slots * (sizes.max_len - 1) > LAG + 1,
    }
    return {word for word, holds in fills.items() if holds}


def _releases(sizes: Geometry, capacity: Capacity) -> set[str]:
    """Whether a page can lie behind the window, and what is then left of the row.

    A sequence has written at most all cells but one, since it must still be able to draw a token.
    """
    least, most = fewest_released(sizes), sizes.max_len - 1
    if least is None:
        return set()
    fits = {
        RELEASES: least <= most,
        RELEASES_INSIDE: least < most and _beside_window(sizes, capacity) != 0,
        GROWS_RELEASED: least + capacity.lookahead <= sizes.max_len - sizes.page_size,
    }
    return {word for word, holds in fits.items() if holds}


def _beside_window(sizes: Geometry, capacity: Capacity) -> int | None:
    """How many cells a ring has past a window, and the page of the next cell; None without one."""
    if sizes.window is None or capacity.longest_row(sizes) == sizes.pages_per_seq:
        return None
    return (capacity.ring - 1) * sizes.page_size - sizes.window + 1


def _rings(sizes: Geometry, capacity: Capacity, limits: Limits) -> set[str]:
    """Whether a row is a ring, and a round can have more tokens of it than it has room for.

    If the next query sees the last cell of a page, a ring has room for one token more than
    `_beside_window`. With pages of one cell, and a window of one, that is so before the first cell,
    where no token is queued.
    """
    beside = _beside_window(sizes, capacity)
    if beside is None:
        return set()
    known, full = sizes.max_len - 1, capacity.ring * sizes.page_size
    wide = limits.round_tokens > beside + 1
    later = sizes.page_size == sizes.window == 1
    fits = {
        RINGS: True,
        LAPS: sizes.pages_per_seq > 2 * capacity.ring,
        CHUNK_PAST_RING: wide and full < known,
        QUEUE_PAST_RING: wide and full + later < known,
    }
    return {word for word, holds in fits.items() if holds}


def _gives_back(sizes: Geometry, capacity: Capacity) -> bool:
    """Whether a row, with what is taken ahead of it, can end with a page and get another cell.

    Its sequence then has a cell already, and does not write its last one. What is reserved for a
    request stays in its row; of rings this is not said.
    """
    if capacity.reserve == "request" or capacity.ring:
        return False
    pages = sizes.pages_for(1 + capacity.lookahead)
    end = pages * sizes.page_size
    fits = end < sizes.max_len and end - capacity.lookahead < sizes.max_len - 1
    return fits and pages < sizes.pages


def _indexes(sizes: Geometry) -> set[str]:
    """Whether a sequence that still draws a token has a whole page or two, and one that hits it."""
    fits = {
        WHOLE_PAGE: sizes.page_size < sizes.max_len,
        HITS: sizes.page_size + 1 < sizes.max_len,
        CHAINS: 2 * sizes.page_size < sizes.max_len,
    }
    return {word for word, holds in fits.items() if holds}


def _sizes(geometries: Iterable[Geometry], capacity: Capacity) -> set[str]:
    words = set[str]()
    for sizes in geometries:
        words.add(SINGLE_CELLS if sizes.page_size == 1 else SEVERAL_CELLS)
        row = capacity.longest_row(sizes)
        rows = sizes.slots * row
        if sizes.pages <= rows:
            words.add(FULL_POOL)
        if sizes.pages < rows:
            words.add(SHORT_POOL)
        if sizes.slots > 1:
            words.add(SEVERAL_SLOTS)
        if sizes.pages > 1:
            words.add(SEVERAL_PAGES)
        if sizes.page_size > 1 and 1 < sizes.pages <= rows - row:
            words.add(SHARED_FULL)
        if sizes.page_size > 1 and min(sizes.slots, sizes.pages) > 2:
            words.add(THREE_OWNERS)
        if sizes.page_size > 1 and sizes.slots > 2 and 1 < sizes.pages < rows + 2 - 2 * row:
            words.add(THREE_CHOICES)
    return words


def in_rows(state: State) -> set[int]:
    """The pages that some row names."""
    return {page for page, count in enumerate(state.counts) if count}


def _shares(before: State, after: State) -> bool:
    """Whether a page has one more name and is shared."""
    return any(new > max(old, 1) for old, new in zip(before.counts, after.counts, strict=True))


def _edges(sizes: Geometry, capacity: Capacity) -> set[str]:
    """Whether one row, or two, can lack one page, at the widths of rows that the policy has.

    A row has any width from its first one to the longest, so that some number of rows together have
    any width between those products; one page more than the pool must be among them. Pages that
    rows share are left out: with them more is possible, and nothing is required of it.
    """
    least = 1 if capacity.reserve == "request" else capacity.row_pages(sizes, 1, 0)
    lacking = sizes.pages + 1
    fewest = -(-lacking // capacity.longest_row(sizes))
    most = min(sizes.slots, lacking // least)
    return {word for word, rows in ((ONE_SHORT, 1), (TWO_SHORT, 2)) if max(rows, fewest) <= most}


def _ended(old: Sequence, new: Sequence | None) -> bool:
    """Whether the slot lost its sequence. A truncation keeps the tokens: it ends nothing."""
    return new is None or new.tokens[: len(old.tokens)] != old.tokens


def _at_edge(state: State, action: Action) -> list[str]:
    """The corners of a batch that nothing but a lack of pages refuses."""
    ends = appended(state, action)
    if not ends:
        return []
    copies, free = copying(state, ends), pool.free_count(state.in_use)
    return edge_corners(pages_of(state, ends), len(copies), free)


def _short(state: State, action: Action) -> Iterator[str]:
    """The corners of an action that is refused for lack of pages, by an engine."""
    free = pool.free_count(state.in_use)
    machine = FLYING if isinstance(action, Dispatch) else MACHINE
    if type(action) not in machine.rules:
        return
    if Reason.OUT_OF_PAGES not in {found.reason for found in machine.refusals(state, action)}:
        return
    yield from _at_edge(state, action)
    if machine.pages_wanted(state, action) != free + 1:
        return
    yield SHORT
    if copies_of_choices(state, action):
        yield CHOICES_SHORT
    if machine.pages_wanted(_nothing_ahead(state), action) <= free:
        yield SHORT_AHEAD


def _nothing_ahead(state: State) -> State:
    """The state with the same rows, under a policy that takes no page before its use."""
    sequences = tuple(found and evolve(found, reserved=0) for found in state.sequences)
    capacity = Capacity(copy=state.capacity.copy)
    return state._replace(capacity=capacity, sequences=sequences)
