"""Batches, tally and sample of a checker beside a second reading that counts by hand."""

from collections.abc import Iterator
from itertools import count
from types import SimpleNamespace
from typing import Any, Final

import jax.numpy as jnp
import numpy as np
import pytest

from conformance.lockstep.watchdog import Watchdog
from conformance.refinement import vmapped
from conformance.refinement.vmapped import Checker, Kind, Tally, Transitions

KINDS: Final = ("rare", "never", "often")
"""The kinds of the checked transitions; no transition is of the second one."""
SIZE: Final = 4


def transitions(numbers: list[int]) -> Transitions:
    """Transitions whose parts all follow from a number, and are all different."""
    number = np.array(numbers, np.int64)
    return Transitions(
        state=number // 3,
        move=100 - number,
        before=number,
        arguments=(2 * number, np.stack([number, number + 1], axis=1)),
        after={"after": 3 * number},
        mask=(number % 5).astype(np.uint32),
    )


def fine(before: Any, arguments: Any, after: Any, mask: Any) -> Any:
    """Whether the parts are those of one number, and the number is not a multiple of 7."""
    double, pair = arguments
    parts = (double == 2 * before) & (pair[0] == before) & (pair[1] == before + 1)
    return parts & (after["after"] == 3 * before) & (mask == before % 5) & (before % 7 != 0)


def kinds(shipped: Any = fine) -> dict[str, Kind]:
    """Kinds with this check of the entry point as shipped."""
    return {name: Kind(name, fine, shipped) for name in KINDS}


def offers(seed: int) -> Iterator[tuple[str, list[int]]]:
    """Kinds and numbers, in parts of 0 to 9; every number once."""
    rng = np.random.default_rng(seed)
    numbers = [int(number) for number in rng.permutation(90)]
    while numbers:
        size = int(rng.integers(10))
        yield KINDS[int(rng.integers(4) > 0) * 2], numbers[:size]
        numbers = numbers[size:]


def first_wrong(numbers: list[int]) -> tuple[int, int] | None:
    """The least (state, move) of the numbers that are wrong."""
    return min(((number // 3, 100 - number) for number in numbers if number % 7 == 0), default=None)


def watched(monkeypatch: pytest.MonkeyPatch) -> tuple[Watchdog, list[Any]]:
    """A watchdog, and what it is told to begin and to end."""
    told = list[Any]()
    watchdog = Watchdog(lambda _history, _message: None)
    monkeypatch.setattr(watchdog, "begin", lambda *given: told.append(given))
    monkeypatch.setattr(watchdog, "end", lambda: told.append("end"))
    return watchdog, told


@pytest.mark.parametrize("seed", range(4))
def test_batches_are_sent_when_full_and_fetched_late(
    seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A batch is sent as soon as it is full, and fetched once more than three are on their way."""
    watchdog, told = watched(monkeypatch)
    checker = Checker(kinds(), size=SIZE, sample=0, seed=0, tally=Tally(), watchdog=watchdog)
    taken = {name: list[int]() for name in KINDS}
    sent: list[list[int]] = []

    for kind, numbers in offers(seed):
        taken[kind] += numbers
        while len(taken[kind]) >= SIZE:
            sent.append(taken[kind][:SIZE])
            del taken[kind][:SIZE]
        checker.add(kind, transitions(numbers))
        fetched = [number for batch in sent[: max(0, len(sent) - 3)] for number in batch]
        assert 2 * (len(sent) + len(fetched) // SIZE) == len(told)
        assert len(fetched) == checker.tally.checked
        assert sum(number % 7 == 0 for number in fetched) == checker.tally.mismatches
        assert first_wrong(fetched) == checker.tally.first
    checker.flush()
    checker.flush()
    checker.finish()

    batches = len(sent) + sum(len(rest) > 0 for rest in taken.values())
    assert [((), vmapped.BATCH_SECONDS), "end"] * 2 * batches == told
    assert Tally(checked=90, mismatches=13, first=first_wrong(list(range(90)))) == checker.tally


def smallest(seed: int, size: int) -> list[tuple[str, int]]:
    """The `size` numbers with the smallest keys, one key for each, drawn in order of the offers."""
    rng, keyed = np.random.default_rng(seed), list[tuple[float, str, int]]()
    for kind, numbers in offers(seed):
        if numbers:
            keys = rng.random(len(numbers)).tolist()
            keyed += zip(keys, [kind] * len(numbers), numbers, strict=True)
    return sorted((kind, number) for _, kind, number in sorted(keyed)[:size])


@pytest.mark.parametrize("size", [0, 1, 2, 7, 30, 89, 90, 91])
def test_the_sample_has_the_smallest_keys(size: int) -> None:
    """The sample is checked as shipped, each transition once, and nothing else is."""
    seen = list[tuple[str, int]]()

    def shipped(kind: str) -> Any:
        def check(before: Any, *others: Any) -> bool:
            seen.append((kind, int(before)))
            return bool(fine(before, *others))

        return check

    for seed in range(3):
        seen.clear()
        given = {name: Kind(name, lambda *_: jnp.ones((), bool), shipped(name)) for name in KINDS}
        checker = Checker(given, size=100, sample=size, seed=seed, tally=Tally())
        for kind, numbers in offers(seed):
            checker.add(kind, transitions(numbers))
        checker.finish()

        expected = smallest(seed, size)
        numbers = [number for _, number in expected]
        assert expected == sorted(seen)
        assert (
            Tally(
                checked=90,
                mismatches=sum(number % 7 == 0 for number in numbers),
                checked_unbatched=min(size, 90),
                first=first_wrong(numbers),
            )
            == checker.tally
        )


class Coarse:
    """Draws keys of which many are equal."""

    def __init__(self, seed: int) -> None:
        self._rng = np.random.default_rng(seed)

    def random(self, size: int) -> Any:
        """The keys of this many transitions."""
        return self._rng.integers(60, size=size) / 60


@pytest.mark.parametrize("most", [1, 5, 40])
@pytest.mark.parametrize("seed", range(4))
def test_the_sample_is_cut_when_it_is_larger_than_four_times_its_size(seed: int, most: int) -> None:
    """It holds the keys below a threshold, which falls exactly when it holds too many."""
    rng: Any = Coarse(seed)
    sample, same, size = vmapped._Sample(3, rng), Coarse(seed), 3
    threshold, held = 1.0, list[float]()

    for number in range(200):
        offered = 1 + number % most
        sample.offer(KINDS[number % 2], transitions(list(range(offered))))

        held += [key for key in same.random(offered).tolist() if key < threshold]
        if len(held) > 4 * size:
            threshold = sorted(held)[size]
            held = [key for key in held if key < threshold]
        kept = [part for parts in sample._kept.values() for part in parts]
        assert len(held) == sum(len(part.mask) for part in kept)


def test_the_first_mismatch_is_the_least() -> None:
    """Mismatches are counted, and the least (state, move) is kept in whatever order they come."""
    places = [(4, 1), (3, 9), (3, 9), (5, 0), (3, 2), (3, 3), (2, 7)]
    tally = Tally()

    for number, (state, move) in enumerate(places):
        tally.wrong(state, move)
        assert min(places[: number + 1]) == tally.first

    assert len(places) == tally.mismatches


@pytest.mark.parametrize(("optimise", "asked"), [(True, 0), (False, 1)])
def test_code_is_compiled_for_speed_by_choice(
    optimise: bool,  # noqa: FBT001 - a case
    asked: int,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The options that shorten a compilation are taken exactly if speed is not wanted."""
    told = list[None]()
    monkeypatch.setattr(vmapped, "compiler_options", lambda: told.append(None))

    Checker(kinds(), size=SIZE, sample=0, seed=0, tally=Tally(), optimise=optimise)

    assert asked == len(told)


def test_the_timed_loop_checks_the_sample_one_at_a_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """The rate is of the last turn alone, in which every sampled transition is checked."""
    traced = list[Any]()

    def check(before: Any, arguments: Any, after: Any, mask: Any) -> Any:
        traced.append([before.shape, [one.shape for one in arguments], after["after"].shape])
        return fine(before, arguments, after, mask)

    checker = Checker({"one": Kind("one", check, fine)}, size=200, sample=60, seed=0, tally=Tally())
    checker.add("one", transitions(list(range(90))))
    squares = (float(number**2) for number in count(10))
    monkeypatch.setattr(vmapped, "time", SimpleNamespace(perf_counter=lambda: next(squares)))

    rate = checker.measure_loop()

    # The clock is read at the start, at the start of each turn, and at the end: 10 to 13, squared.
    assert 60 / (13**2 - 12**2) == rate
    assert [[(), [(), (2,)], ()]] == traced
