"""The refinement check: what a rung does, seen from the rung below, is what that rung does.

For each edge, `abstract(step(s, a)) == fold(lower.step, abstract(s), lower(s, a))`. The edge from
lifecycle to sharing is an extension by construction: it can only fail through `lower`.
"""

from collections.abc import Iterator

from spec.machines import cache, lifecycle, naive, pages, scheduling, sharing
from spec.machines.actions import Append, Enqueue, Generate, Pack, Prefill, Purge, Round
from spec.table import Sequence

EDGES = (
    "scheduling to naive",
    "lifecycle to sharing",
    "sharing to pages",
    "pages to cache",
    "cache to naive",
)
"""What is checked, by the names that a broken edge is told by."""

EXTENSIONS = ("lifecycle",)
"""Rungs whose `abstract` is a projection: they claim nothing more than the rung below."""


class LadderBroken(AssertionError):
    """A rung differs from what the rung below does with the lowered actions."""

    def __init__(self, edge: str, action: object, above: object, below: object) -> None:
        super().__init__(f"{edge} on {action}:\n  above, abstracted: {above}\n  below: {below}")


def check_scheduling(before: scheduling.State, action: scheduling.Action) -> scheduling.State:
    """Step the whole ladder and check every edge. Raises LadderBroken; returns the new state."""
    after = scheduling.step(before, action)
    below = scheduling.abstract(before)
    for part in scheduling.lower(before, action):
        below = naive.step(below, part)
    _same("scheduling to naive", action, scheduling.abstract(after), below)
    check_lifecycle_parts(before, action)
    return after


def check_lifecycle_parts(before: scheduling.State, action: scheduling.Action) -> None:
    """Check every edge below for the lifecycle actions that make up a scheduling action."""
    if isinstance(action, Generate):
        for _ in range(scheduling.generate(before)[1]):
            check_lifecycle_parts(before, Round())
            before = scheduling.effect(before, Round())
        return
    state = before.lifecycle
    for part in lifecycle_parts(before, action):
        state = check_lifecycle(state, part)


def lifecycle_parts(
    state: scheduling.State, action: scheduling.Action
) -> tuple[lifecycle.Action, ...]:
    """The lifecycle actions that a scheduling action is a fold of; none for the queue's own."""
    match action:
        case Prefill(requests):
            return scheduling.prefill_parts(state, requests)
        case Round():
            return scheduling.round_parts(state)
        case Generate():
            rounds = scheduling.generate(state)[1]
            return scheduling.round_parts(state) if rounds else ()
        case Enqueue(slot, token):
            return (Append(slot, (token,)),)
        case Pack() | Purge():
            return ()
        case _:
            return (action,)


def check_lifecycle(before: lifecycle.State, action: lifecycle.Action) -> lifecycle.State:
    """Check lifecycle to sharing, and below."""
    after = lifecycle.step(before, action)
    below = lifecycle.abstract(before)
    for part in lifecycle.lower(before, action):
        below = check_sharing(below, part)
    _same("lifecycle to sharing", action, lifecycle.abstract(after), below)
    return after


def check_sharing(before: sharing.State, action: sharing.Action) -> sharing.State:
    """Check sharing to pages, and below."""
    after = sharing.step(before, action)
    below = sharing.abstract(before)
    for part, choice in sharing.lower(before, action):
        below = check_pages(below, part, choice)
    _same("sharing to pages", action, _live(sharing.abstract(after)), _live(below))
    return after


def check_pages(
    before: pages.State, action: pages.Action, choice: pages.Pages | None
) -> pages.State:
    """Check pages to cache, and cache to naive."""
    after = pages.step(before, action, choice)
    contiguous = pages.abstract(before)
    for part in pages.lower(before, action):
        text = cache.abstract(contiguous)
        for word in cache.lower(contiguous, part):
            text = naive.step(text, word)
        contiguous = cache.step(contiguous, part)
        _same("cache to naive", part, cache.abstract(contiguous), text)
    _same("pages to cache", action, pages.abstract(after), contiguous)
    return after


def _live(state: pages.State) -> Iterator[tuple[Sequence | None, object]]:
    """States are equal if their live cells are."""
    for sequence in state.sequences:
        row = sequence.row if sequence else ()
        yield sequence, tuple(state.cells[page] for page in row)


def _same(edge: str, action: object, above: object, below: object) -> None:
    if isinstance(above, Iterator) and isinstance(below, Iterator):
        above, below = tuple(above), tuple(below)
    if above != below:
        raise LadderBroken(edge, action, above, below)
