"""The settings of a run: sizes, limits and cleanup of the engines that its histories are about.

Many bugs need a size: a row that cannot grow, a queue without room, a count past 8 bits. A run
begins at a few usual settings, and comes to further ones one after another, since an engine may
have to be compiled for each.
"""

import random
from collections.abc import Callable, Iterable, Iterator
from functools import cache, partial
from typing import Final, NamedTuple

from attrs import evolve

from conformance.files.geometries import geometry_to_text
from conformance.lockstep.called import made_at
from conformance.protocol import Engine, Factory, Unsupported
from conformance.rungs.window import fewest_released
from spec.machines.actions import Release
from spec.vocabulary import CleanupMode, Geometry, InvalidInput, Limits, default_limits

LONGEST_ROW: Final = 160
"""The most cells of a row that is made longer to show a lookahead."""
PAST_8_BITS: Final = 258
"""Cells of a row with which a count of 8 bits wraps around, whether it has a sign or not."""
PAST_7_BITS: Final = 130
"""Slots with which a signed count of 8 bits wraps around; more would take longer."""
LONGEST_FURTHER: Final = 2 * LONGEST_ROW
"""The most cells of a row at a further setting, where the engine has no such sizes."""


class Setting(NamedTuple):
    """What an engine is made with."""

    geometry: Geometry
    cleanup: CleanupMode
    limits: Limits


Narrow = Callable[[Geometry], Limits]


def usual(main: Geometry, *, lookahead: int = 0, windows: bool = False) -> tuple[Setting, ...]:
    """The given geometry and two others that reach further corner states.

    The first has longer rows if only they can tell this lookahead from others, or show a release
    behind this window. The second has pages of one cell, so that every cell is at a page boundary,
    and rounds of more tokens than slots; the third has a pool too small for its slots, and rounds
    of fewer. In both, pages run out. windows: whether the third has a window if the others have
    none: it ends inside a page, one before that of the query.
    """
    return tuple(
        Setting(sizes, cleanup, limits(sizes))
        for sizes, cleanup, limits in _usual(main, lookahead=lookahead, windows=windows)
    )


def _usual(
    main: Geometry, *, lookahead: int, windows: bool
) -> list[tuple[Geometry, CleanupMode, Narrow]]:
    single = evolve(main, page_size=1, pages_per_seq=min(main.pages, 2 * main.pages_per_seq))
    tight = evolve(main, pages=max(2, main.pages // 2), page_size=max(2, main.page_size - 1))
    if windows and main.window is None:
        tight = with_window(tight)
    return [
        (_with_rows_past(lookahead, main), CleanupMode.INCREMENTAL, default_limits),
        (single, CleanupMode.END, wide_rounds),
        (tight, CleanupMode.NONE, long_calls),
    ]


def with_window(sizes: Geometry) -> Geometry:
    """The geometry with a window of a page and a cell."""
    return evolve(sizes, window=sizes.page_size + 1)


def full_buffers(sizes: Geometry) -> Limits:
    """A queue and a buffer of outputs with one entry for each slot; short stop sequences."""
    return evolve(default_limits(sizes), queue=sizes.slots, outputs=sizes.slots, stop_len=3)


def long_calls(sizes: Geometry) -> Limits:
    """Full buffers, rounds of half the slots, and in one call as many as all rows have cells."""
    return evolve(
        full_buffers(sizes),
        round_tokens=max(1, sizes.slots // 2),
        rounds=sizes.slots * sizes.max_len,
    )


def narrow_batches(sizes: Geometry) -> Limits:
    """Batches narrower than a row, rounds narrower than the slots, and few rounds in a call."""
    return evolve(
        default_limits(sizes),
        prefill_tokens=max(1, sizes.max_len - sizes.page_size + 1),
        prefill_seqs=max(1, sizes.slots - 1),
        round_tokens=max(1, sizes.slots - 1),
        rounds=3,
        stops=3,
    )


def wide_rounds(sizes: Geometry) -> Limits:
    """Prefills narrower than a row, and rounds of more tokens than there are slots."""
    return evolve(narrow_batches(sizes), queue=3 * sizes.slots, round_tokens=sizes.slots + 2)


def least(sizes: Geometry) -> Limits:
    """Everything one at a time."""
    return Limits(
        queue=sizes.slots,
        prefill_tokens=1,
        prefill_seqs=1,
        round_tokens=1,
        rounds=1,
        stops=1,
        stop_len=1,
        outputs=sizes.slots,
    )


def one_prefill(sizes: Geometry) -> Limits:
    """One prompt at a time, as wide as the longest row; stop sequences as long as a page; rounds
    that take several tokens of every slot.
    """
    return evolve(
        default_limits(sizes),
        round_tokens=2 * sizes.slots + 1,
        queue=3 * sizes.slots,
        prefill_seqs=1,
        prefill_tokens=sizes.max_len,
        stops=1,
        stop_len=sizes.page_size + 1,
    )


def wide(sizes: Geometry) -> Limits:
    """Everything wider than slots, rows or the queue can use."""
    most = max(sizes.max_len, 2 * sizes.slots) + 1
    return Limits(
        queue=most,
        prefill_tokens=2 * most,
        prefill_seqs=sizes.slots + 1,
        round_tokens=most + 1,
        rounds=most,
        stops=most,
        stop_len=most,
        outputs=most,
    )


def further(
    main: Geometry, *, windows: bool = False
) -> tuple[tuple[Geometry, CleanupMode, Narrow], ...]:
    """Sizes that reach what no usual setting does; each with a cleanup and limits.

    The first differs from a usual setting in the cleanup alone: an engine may take one for the
    other. windows: whether the last ones have windows of their own, of one position and of two
    pages.
    """

    def sized(pages: int, page_size: int, slots: int, pages_per_seq: int) -> Geometry:
        return evolve(
            main, pages=pages, page_size=page_size, slots=slots, pages_per_seq=pages_per_seq
        )

    after, end, never = CleanupMode.INCREMENTAL, CleanupMode.END, CleanupMode.NONE
    windowed = (
        (evolve(sized(9, 2, 3, 6), window=1), after, narrow_batches),
        (evolve(sized(10, 2, 3, 6), window=4), end, wide_rounds),
    )
    return (
        (main, end, default_limits),
        (sized(5, 3, 1, 4), after, narrow_batches),  # one slot
        (sized(4, 4, 5, 1), after, full_buffers),  # one page for a sequence
        (sized(PAST_8_BITS + 30, 1, 2, PAST_8_BITS), after, one_prefill),
        (sized(PAST_7_BITS + 9, 2, PAST_7_BITS, 2), after, full_buffers),
        (sized(7, 12, 5, 3), never, one_prefill),  # no two sizes are equal, none is a power of two
        (sized(4, 2, 3, 4), never, full_buffers),  # one row can take the whole pool
        (sized(9, 2, 9, 3), after, narrow_batches),  # more slots than tokens, or bits of a byte
        (sized(6, 3, 3, 3), end, least),
        (sized(1, 4, 2, 2), after, default_limits),  # one page
        (sized(20, 3, 4, 5), after, narrow_batches),  # pages never run out
        (sized(6, 20, 2, 3), end, one_prefill),  # long pages
        (sized(22, 1, 3, 7), never, wide),  # more pages than all rows have cells
        (sized(12, 4, 4, 3), end, long_calls),  # the pool is exactly what the rows can take
        *(windowed if windows else ()),
    )


def _with_rows_past(lookahead: int, main: Geometry) -> Geometry:
    """The geometry with rows that end past a cell, its page and what is taken ahead of them.

    With a window they have a page past the fewest cells of which one is released, so that a row
    grows after a release. The pool grows with the rows. The geometry as it is, if its rows suffice
    or would be too long.
    """
    cells = lookahead + main.page_size + (fewest_released(main) or 1)
    if not main.max_len < cells <= LONGEST_ROW:
        return main
    longer = main.pages_for(cells)
    pages = main.pages * longer // main.pages_per_seq
    return evolve(main, pages=pages, pages_per_seq=longer)


def is_large(sizes: Geometry) -> bool:
    """Whether a step at these sizes takes several times as long as at the usual ones."""
    return sizes.max_len > LONGEST_ROW or sizes.slots >= PAST_7_BITS


def settings_of(
    factory: Factory, geometry: Geometry, *, alone: bool = False
) -> tuple[Setting, ...]:
    """The usual settings of a run, at sizes that the engine has.

    alone: this geometry and no other, with its default limits. Raises Unsupported if the engine
    does not have it.
    """
    if alone:
        limits = default_limits(geometry)
        return tuple(Setting(geometry, cleanup, limits) for cleanup in CleanupMode)
    lookahead, windows = _lookahead(factory, geometry), _has_windows(factory, geometry)
    every = _usual(geometry, lookahead=lookahead, windows=windows)
    return tuple(
        _nearest_supported(factory, _with_laps(factory, sizes), cleanup, limits)
        for sizes, cleanup, limits in every
    )


def fullest(settings: Iterable[Setting]) -> Setting:
    """The setting at which an engine offers most: the first with a window, or the first."""
    return max(settings, key=lambda one: one.geometry.window is not None)


def further_of(
    factory: Factory,
    geometry: Geometry,
    *,
    known: tuple[Setting, ...],
    seed: int,
    leave_out: Callable[[str, str], None],
) -> Iterator[Setting]:
    """The further settings, none of which is among the known ones: first another cleanup at usual
    sizes, then what is large, since nothing else shows counts that wrap around, and the others in
    an order that depends on the seed.

    leave_out: takes a geometry at which no engine can be made, and why.
    """
    windows = _has_windows(factory, geometry)
    (first, *candidates), seen = further(geometry, windows=windows), {*known}
    random.Random(seed).shuffle(candidates)
    candidates.sort(key=lambda candidate: not is_large(candidate[0]))
    for sizes, cleanup, limits in (first, *candidates):
        try:
            setting = _supported(factory, sizes, cleanup, limits)
        except InvalidInput as error:
            leave_out(f"an engine at {geometry_to_text(sizes)}", str(error))
            continue
        is_longer = setting.geometry != sizes and setting.geometry.max_len > LONGEST_FURTHER
        if setting not in seen and not is_longer:
            seen.add(setting)
            yield setting


def chooses(
    factory: Factory, geometry: Geometry, *, alone: bool = False
) -> Callable[[Geometry, Limits], bool]:
    """Whether a run may come to these sizes, with the limits that it has there or the default ones.

    geometry, alone: see `settings_of`. Engines are made only for what is asked.
    """
    usual = settings_of(factory, geometry, alone=alone)

    @cache
    def others() -> tuple[Setting, ...]:
        if alone:
            return ()
        return tuple(further_of(factory, geometry, known=usual, seed=0, leave_out=_nowhere))

    def is_among(found: Iterable[Setting], sizes: Geometry, limits: Limits) -> bool:
        there = [one.limits for one in found if one.geometry == sizes]
        return limits in there or (bool(there) and limits == default_limits(sizes))

    def is_chosen(sizes: Geometry, limits: Limits) -> bool:
        return is_among(usual, sizes, limits) or is_among(others(), sizes, limits)

    return is_chosen


def _nowhere(_what: str, _why: str) -> None:
    """Nobody is told what is left out."""


def make(
    factory: Factory, geometry: Geometry, cleanup: CleanupMode, limits: Limits | None = None
) -> Engine:
    """An engine in its initial state. limits: the default limits of the geometry if None."""
    limits = default_limits(geometry) if limits is None else limits
    return made_at(geometry, partial(factory, geometry, limits, cleanup))


def geometry_source(*, given: bool) -> str:
    """Where the geometry of a finding comes from, in words."""
    return "given by --geometry" if given else "chosen by the kit"


def _lookahead(factory: Factory, geometry: Geometry) -> int:
    """The lookahead that an engine of about this geometry declares; 0 if none can be made."""
    nearest = _nearest_supported(factory, geometry, CleanupMode.INCREMENTAL, default_limits)
    try:
        return make(factory, *nearest).profile.lookahead
    except (Exception, SystemExit):  # whoever makes the engine next reports it
        return 0


def _with_laps(factory: Factory, sizes: Geometry) -> Geometry:
    """The geometry with rows of more than two rounds of the ring that the engine has there."""
    if sizes.window is None:
        return sizes
    try:
        ring = make(factory, sizes, CleanupMode.INCREMENTAL).profile.ring
    except (Exception, SystemExit):  # whoever makes the engine next reports it
        return sizes
    longer = evolve(sizes, pages_per_seq=max(sizes.pages_per_seq, 2 * ring + 1))
    return longer if longer.max_len <= LONGEST_ROW else sizes


def _has_windows(factory: Factory, main: Geometry) -> bool:
    """Whether the engine has windows that the kit may choose: with one it releases pages.

    It offers Release, or has a ring. An engine that takes a window and never releases may as well
    not attend through it.
    """
    if main.window is not None:
        return False
    windowed = with_window(main)
    try:
        engine = make(factory, windowed, CleanupMode.INCREMENTAL)
        return Release in engine.profile.actions or engine.profile.ring > 0
    except (Exception, SystemExit):
        return False


def _nearest_supported(
    factory: Factory, geometry: Geometry, cleanup: CleanupMode, limits: Narrow
) -> Setting:
    try:
        return _supported(factory, geometry, cleanup, limits)
    except (Exception, SystemExit):  # whoever makes the engine next reports it
        return Setting(geometry, cleanup, limits(geometry))


def _supported(
    factory: Factory, geometry: Geometry, cleanup: CleanupMode, limits: Narrow
) -> Setting:
    """This setting, or one at the nearest sizes. Raises what the engine does, but Unsupported."""
    setting = Setting(geometry, cleanup, limits(geometry))
    try:
        make(factory, *setting)
    except Unsupported as error:
        return Setting(error.nearest, cleanup, limits(error.nearest))
    return setting
