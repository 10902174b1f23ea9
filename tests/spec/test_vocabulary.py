"""Input that no state could accept is rejected before any state is touched, with a full message."""

import math
from collections.abc import Callable
from random import Random
from typing import Any

import pytest
from attrs import fields
from spec_tools import MACHINE, geometry, limits, machine

from spec.machines.actions import Assign, Enqueue
from spec.vocabulary import (
    INVALID,
    Geometry,
    InvalidInput,
    Limits,
    Params,
    Reason,
    Refusal,
    Request,
    default_limits,
)
from spec.vocabulary.errors import KvspecError

GEOMETRY: dict[str, Any] = {"pages": 4, "page_size": 2, "slots": 2, "pages_per_seq": 3}
LIMITS: dict[str, Any] = {
    "queue": 2,
    "prefill_tokens": 6,
    "prefill_seqs": 2,
    "round_tokens": 2,
    "rounds": 1,
    "stops": 1,
    "stop_len": 1,
    "outputs": 2,
}
PARAMS: dict[str, Any] = {"max_new": 1}
REQUEST: dict[str, Any] = {"id": 0, "prompt": (1,), "params": Params(max_new=1)}
NO_SIZE = (0, -1, 2**31, True, 1.0, "1", None)
NO_TOKENS = ((), [1], (1, -1), (True,), (1.0,), (2**31,), "1", None)
NO_COUNT = (0, -1, 2**31, True, 1.5, None)

BAD: tuple[tuple[Callable[..., object], dict[str, Any], str, tuple[object, ...]], ...] = (
    *((Geometry, GEOMETRY, name, NO_SIZE) for name in GEOMETRY),
    (Geometry, GEOMETRY, "window", NO_SIZE[:-1]),
    *((Limits, LIMITS, name, NO_SIZE) for name in LIMITS),
    (Params, PARAMS, "max_new", NO_COUNT),
    (Params, PARAMS, "seed", (-1, 2**31, True, 0.0)),
    (Params, PARAMS, "stops", ([(1,)], ((),), ((1, -1),), ([1],), (1,), "1", None)),
    (Params, PARAMS, "temperature", (math.nan, math.inf, -0.1, True, "1", None)),
    (Request, REQUEST, "id", (-1, 2**31, True, None)),
    (Request, REQUEST, "prompt", NO_TOKENS),
    (Request, REQUEST, "n_generations", NO_COUNT),
    (Assign, {"slot": 0, "params": Params(max_new=1), "request": 0}, "prompt", NO_TOKENS),
    (Enqueue, {"slot": 0}, "token", (-1, 2**31, True, 1.0, None)),
)
"""The maker of a value, its other arguments, the argument in question, the rejected values."""
CASES = [
    pytest.param(make, {**rest, name: value}, name, id=f"{name}={value!r}")
    for make, rest, name, values in BAD
    for value in values
]


@pytest.mark.parametrize(("make", "arguments", "name"), CASES)
def test_a_meaningless_value_is_rejected(
    make: Callable[..., object], arguments: dict[str, Any], name: str
) -> None:
    """The error names the argument and says what was seen, what is allowed and what to do."""
    with pytest.raises(InvalidInput) as caught:
        make(**arguments)

    error = caught.value
    assert error.name.endswith(f".{name}")
    assert f"{error.name}: saw {error.seen!r}, allowed: {error.allowed}. {error.remedy}" == str(
        error
    )
    assert all((error.allowed, error.remedy))


@pytest.mark.parametrize(
    ("make", "arguments"),
    [(Geometry, GEOMETRY), (Limits, LIMITS), (Params, PARAMS), (Request, REQUEST)],
)
def test_the_other_arguments_are_good(
    make: Callable[..., object], arguments: dict[str, Any]
) -> None:
    """The unspoilt values of the cases above are accepted and hashable."""
    assert 1 == len({make(**arguments), make(**arguments)})


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        (
            {"pages": 2**16, "page_size": 2**15},
            "Geometry.pages: saw '65536 pages of 32768', allowed: pages * page_size below 2**31",
        ),
        (
            {"pages_per_seq": 2**16, "page_size": 2**15},
            "Geometry.pages_per_seq: saw '65536 pages of 32768', allowed: pages_per_seq * page_s",
        ),
    ],
)
def test_destinations_and_positions_are_int32(changed: dict[str, int], message: str) -> None:
    """A pool or a row may have 2**31 - 1 cells and not one more, so that INVALID is outside."""
    with pytest.raises(InvalidInput) as caught:
        Geometry(**{**GEOMETRY, **changed})

    assert str(caught.value).startswith(message)
    largest = Geometry(pages=2**31 - 1, page_size=1, slots=1, pages_per_seq=2**31 - 1)
    assert largest.pages * largest.page_size - 1 < INVALID


@pytest.mark.parametrize("name", ["queue", "outputs"])
def test_limits_that_a_round_could_meet_are_too_small(name: str) -> None:
    """The queue and the outputs hold one entry per slot, so that a round never meets a full one."""
    sizes = geometry(pages=4, page_size=2, slots=3, pages_per_seq=3)

    with pytest.raises(InvalidInput, match=f"Limits.{name}: saw 2, allowed: at least 3"):
        limits(sizes, **{name: 2}).check(sizes)
    limits(sizes, **{name: 3}).check(sizes)


@pytest.mark.parametrize("seed", range(4))
def test_no_other_limit_excuses_a_queue_or_outputs_that_are_too_small(seed: int) -> None:
    """Limits serve a geometry exactly if both have an entry for each slot."""
    rng, names = Random(seed), [one.name for one in fields(Limits)]
    for _ in range(200):
        sizes = geometry(pages=4, page_size=2, slots=rng.randint(1, 4), pages_per_seq=3)
        drawn = Limits(**{name: rng.randint(1, 5) for name in names})
        short = [name for name in ("queue", "outputs") if getattr(drawn, name) < sizes.slots]

        if short:
            with pytest.raises(InvalidInput) as told:
                drawn.check(sizes)
            assert f"Limits.{short[0]}" == told.value.name
        else:
            drawn.check(sizes)


def test_sizes_by_hand() -> None:
    """Rows of 3 pages of 4 have 12 positions; 0, 1, 4 and 5 of them need 0, 1, 1 and 2 pages."""
    sizes = geometry(pages=9, page_size=4, slots=2, pages_per_seq=3)

    assert 12 == sizes.max_len
    assert [0, 1, 1, 2] == [sizes.pages_for(positions) for positions in (0, 1, 4, 5)]


def test_default_limits_serve_their_geometry() -> None:
    """By default every slot decodes in each round and the longest prompt prefills at once."""
    for slots in (1, 8):
        sizes = geometry(pages=4, page_size=2, slots=slots, pages_per_seq=3)
        found = default_limits(sizes)
        found.check(sizes)
        assert slots == found.round_tokens
        assert sizes.max_len <= found.prefill_tokens
        assert found == limits(sizes)
    assert found == Limits(
        queue=16,
        prefill_tokens=16,
        prefill_seqs=8,
        round_tokens=8,
        rounds=8,
        stops=2,
        stop_len=4,
        outputs=16,
    )


def test_errors_form_a_shallow_tree() -> None:
    """Everything raised on purpose is a KvspecError; bad input is a ValueError as well."""
    with pytest.raises(KvspecError) as invalid:
        Params(max_new=0)
    with pytest.raises(KvspecError):
        MACHINE.step(machine(Geometry(**GEOMETRY)), Enqueue(0, 1))

    assert isinstance(invalid.value, ValueError)


class Unwritable:
    """A value of a caller that cannot be shown."""

    def __repr__(self) -> str:
        raise LookupError


@pytest.mark.parametrize(
    "value",
    [10**5000, -(10**4000), "x" * 10_000, [[1]] * 9999, Unwritable()],
    ids=["digits", "negative", "text", "list", "unwritable"],
)
def test_what_was_seen_fits_into_the_message(value: object) -> None:
    """A message shortens a large value, shows one without repr, and keeps the value itself."""
    with pytest.raises(InvalidInput) as caught:
        Params(max_new=value)  # type: ignore[arg-type]

    assert value is caught.value.seen
    assert len(str(caught.value)) < 600
    assert "Params.max_new: saw " in str(caught.value)
    assert len(str(Refusal(Reason.SLOT_RANGE, value, "0 to 3"))) < 10_200


@pytest.mark.parametrize("value", [10**400, float("inf"), float("nan"), -1, True])
def test_a_temperature_is_a_finite_float(value: float) -> None:
    """Infinite, negative and boolean temperatures, and integers beyond every float, are refused."""
    with pytest.raises(InvalidInput, match=r"Params\.temperature"):
        Params(max_new=1, temperature=value)
