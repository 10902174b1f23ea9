"""What a recording must reach, so that being legal says something: items of coverage.

By default four items: an action refused, a full pool, a page taken again and, if some action shares
pages, a shared page. A recording without them is legal whatever an allocator does there.
"""

from collections.abc import Sequence
from typing import Final

from conformance.recordings.format import Header, profile_of
from conformance.rungs.coverage import RARE_STEPS, Coverage, offered_by
from conformance.rungs.pages import FULL, PAGE_REUSED, REFUSED
from conformance.rungs.registry import ACTIONS, CORNERS
from conformance.rungs.sharing import SHARED
from spec.machines.actions import Clone, Hit, Share
from spec.vocabulary import InvalidInput, Reason

NOTHING: Final = "nothing"
EVERYTHING: Final = "everything"
DEFAULT: Final = (REFUSED, FULL, PAGE_REUSED)
SHARES: Final = frozenset({Clone, Hit, Share})
"""The actions by which two rows come to name one page."""


def required(words: Sequence[str], coverage: Coverage, header: Header) -> list[str]:
    """The items that a recording must reach.

    words: items by name; NOTHING; EVERYTHING, which is what fuzzing requires of an engine that
    offers the actions of the recording; none for the default.
    """
    items: list[str] = []
    for word in words:
        if word == EVERYTHING:
            profile = profile_of(header, actions=coverage.kinds)
            offered = offered_by(
                profile,
                [header.geometry],
                poisonable=False,
                cleanups=[header.cleanup],
                limits=lambda _: header.limits,
                rare=coverage.steps >= RARE_STEPS,
            )
            items += coverage.coverable(offered)
        elif word != NOTHING:
            items.append(word)
    if not words:
        items += [*DEFAULT, *[SHARED] * (not SHARES.isdisjoint(coverage.kinds))]
    return list(dict.fromkeys(items))


def require_known(words: Sequence[str]) -> None:
    """Raise InvalidInput for a word that is no item."""
    for word in words:
        if word not in {NOTHING, EVERYTHING}:
            _require_item(word)


def _require_item(word: str) -> None:
    action, _, outcome = word.partition(": ")
    names = {kind.__name__ for kind in ACTIONS}
    if word in CORNERS or (action in names and outcome in {"done", *Reason.__members__}):
        return
    corners = "; ".join(CORNERS)
    raise InvalidInput(
        "--require",
        seen=word,
        allowed=f"{NOTHING}, {EVERYTHING}, 'Action: done', 'Action: REASON', or one of: {corners}",
        remedy="Take an item that kvspec validate or kvspec fuzz prints.",
    )
