"""The adapter of Levanter without Levanter: its errors, and the parts that do not need it."""

import re
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType, SimpleNamespace

import numpy as np
import pytest

from conformance.engines import drift, levanter
from conformance.engines.caller import Caller
from conformance.files import histories
from conformance.harnesses import levanter_requests
from conformance.harnesses.levanter_models import WORDS, sum_after
from conformance.harnesses.workloads import Factory
from spec.machines import actions as act
from spec.vocabulary import (
    INVALID,
    CleanupMode,
    Geometry,
    InvalidInput,
    default_limits,
)

SIZES = Geometry(pages=4, slots=3, page_size=2, pages_per_seq=2)
FINDINGS = Path(__file__).parents[2] / "docs" / "findings"


@pytest.fixture
def engine() -> Iterator[ModuleType]:
    """A module `fake_engine` with one class, as if it were installed."""
    module = ModuleType("fake_engine")

    class Table:
        def free(self, slot: int) -> None: ...

    vars(module)["Table"] = Table
    sys.modules["fake_engine"] = module
    yield module
    del sys.modules["fake_engine"]


def test_without_levanter_the_error_says_how_to_install_it() -> None:
    """The adapter can be imported without Levanter, and making an engine names the make target."""
    with pytest.raises(InvalidInput, match=r"not installed.*make engine-levanter"):
        levanter.make(SIZES, default_limits(SIZES), CleanupMode.NONE)


@pytest.mark.parametrize("factory", [levanter_requests.weighing, levanter_requests.llama])
def test_without_levanter_its_requests_say_so_too(factory: Factory) -> None:
    """The adapter for requests can be imported too, and making an engine names the make target."""
    with pytest.raises(InvalidInput, match=r"not installed.*make engine-levanter"):
        factory(SIZES)


def test_the_model_known_by_hand_sees_every_token_and_its_place() -> None:
    """The next token changes with any token of the text, and if two neighbours are swapped."""
    text = (3, 1, 4, 0, 5, 9, 2, 6)
    right = sum_after(text)
    others = [
        (*text[:place], token, *text[place + 1 :])
        for place in range(len(text))
        for token in range(WORDS)
        if token != text[place]
    ]
    swapped = [
        (*text[:place], text[place + 1], text[place], *text[place + 2 :])
        for place in range(len(text) - 1)
    ]

    assert right == 1 + 3 + 3 * 1 + 5 * 4 + 9 * 5 + 11 * 9 + 13 * 2 + 15 * 6 - 2 * WORDS
    assert right not in {sum_after(other) for other in (*others, *swapped)}


@pytest.mark.usefixtures("engine")
def test_what_has_not_drifted_passes() -> None:
    """A call with the parameters that the adapter expects is accepted."""
    drift.require("fake-engine", {"fake_engine:Table.free": ("self", "slot")}, remedy="No.")


@pytest.mark.usefixtures("engine")
@pytest.mark.parametrize(
    ("call", "parameters", "told"),
    [
        ("fake_engine:Table.free", ("self", "sequence"), "takes self, slot instead of"),
        ("fake_engine:Table.free", ("self",), "takes self, slot instead of self"),
        ("fake_engine:Table.release", ("self",), "no fake_engine:Table.release"),
        ("no_such_engine:Table.free", ("self",), "no no_such_engine:Table.free"),
    ],
)
def test_drift_is_named(call: str, parameters: tuple[str, ...], told: str) -> None:
    """A renamed parameter, an additional one, a missing call and a missing module are named."""
    with pytest.raises(InvalidInput, match=told):
        drift.require("fake-engine", {call: parameters}, remedy="Install another.")


def test_the_caller_notes_what_was_done_and_nothing_that_was_illegal() -> None:
    """The caller records the legal actions that the engine took, and no illegal ones."""
    above = Caller(SIZES, default_limits(SIZES), CleanupMode.NONE)
    above.note(act.Reserve(1))
    above.note(act.Reserve(1))
    above.note(act.Allocate(((1, 0),)))
    above.note(act.Allocate(((2, 0),)))

    assert [one and one.allocated for one in above.state.sequences] == [None, 1, None]


def test_a_batch_is_sent_as_levanter_assumes_it() -> None:
    """A batch is grouped by slot in order of appearance and sorted by position, without padding."""
    batch = ((2, 1), None, (0, 0), (2, 0))

    assert levanter.grouped(batch) == [(2, 0), (2, 1), (0, 0)]


def test_a_plan_is_read_back_by_slot() -> None:
    """A plan in the order of the batch is read back by slot, each with its own destinations."""
    batch = ((2, 1), None, (0, 0), (2, 0))
    shown = {
        "slot_ids": [2, 0, 9],
        "page_indices": [[3, 9], [1, 9], [9, 9]],
        "seq_lens": [2, 1, 9],
        "cu_q_lens": [0, 2, 3, 4],
        "new_token_dests": [6, 7, 2, 9],
    }
    arrays = {name: SimpleNamespace(array=np.array(values)) for name, values in shown.items()}
    info = SimpleNamespace(**arrays, num_seqs=2)

    plan = levanter.plan(
        info,
        batch,
        levanter.grouped(batch),
        lambda row: tuple(INVALID if page == 9 else page for page in row),
    )

    assert (plan.slot_ids, plan.page_indices, plan.kv_lens) == ((0, 2), ((1,), (3,)), (1, 2))
    assert (plan.cu_q_lens, plan.order, plan.destinations) == ((0, 1, 3), (2, 3, 0), (2, 6, 7))


def test_every_finding_has_a_page_with_its_command() -> None:
    """Each finding has a page in the index, each history stands on a page, and scripts compile."""
    index = (FINDINGS / "index.md").read_text(encoding="utf-8")
    pages = {page: page.read_text(encoding="utf-8") for page in FINDINGS.glob("levanter-*.md")}

    assert pages
    assert [] == [page.name for page in pages if f"({page.name})" not in index]
    command = re.compile(r"make finding-levanter(-2025)? NAME=")
    assert [] == [page.name for page, text in pages.items() if not command.search(text)]
    for history in FINDINGS.glob("levanter-*.jsonl"):
        assert histories.load(history).engine == "conformance.engines.levanter:make_bare"
        assert any(history.name in text for text in pages.values())
    for script in FINDINGS.glob("*.py"):
        compile(script.read_text(encoding="utf-8"), script, "exec")
