"""Histories of requests, statistics and admission, by hand from docs/sources.md."""

from collections.abc import Iterable

import pytest
from spec_tools import (
    MACHINE,
    SERVING,
    climb,
    counts,
    geometry,
    limits,
    machine,
    rows,
    sequence,
    span,
)

from spec import model, stats, table
from spec.machines import admission, naive
from spec.machines.actions import (
    Action,
    Admit,
    Allocate,
    Assign,
    Enqueue,
    Free,
    FreeFinished,
    Generate,
    Pack,
    Prefill,
    Reserve,
    Reset,
    Round,
    Submit,
    Write,
)
from spec.state import State
from spec.stats import Stats
from spec.table import BatchPlan
from spec.vocabulary import CleanupMode, FinishReason, Params, Reason, Refused, Request

SIX = (10, 11, 12, 13, 14, 15)
FOUR = (20, 21, 22, 23)


def request(number: int, *, prompt: int, max_new: int, n: int = 1) -> Request:
    """A request of a given size."""
    tokens = tuple(range(100 * number, 100 * number + prompt))
    return Request(id=number, prompt=tokens, params=Params(max_new=max_new), n_generations=n)


def only_output(state: State) -> tuple[tuple[int, ...], FinishReason]:
    """Tokens and reason of the one output there is."""
    (output,) = state.outputs
    return output.tokens, output.reason


def test_prefill_of_two_requests_with_two_choices_each() -> None:
    """Prompts of 6 and 4 tokens, two choices each, take slots 0, 2, 3, 4 around a used slot 1."""
    # Pages of 4. Prompts first, slots ascending: slot 0 takes pages 0 and 1, slot 3 page 2. Then
    # the forks: 2 shares page 0 and copies page 1 into page 3; 4 shares page 2, which is full.
    state = machine(geometry(pages=8, page_size=4, slots=5, pages_per_seq=3))
    drawn = Params(max_new=3, temperature=1.0, seed=7)
    both = (
        Request(id=10, prompt=SIX, params=drawn, n_generations=2),
        Request(id=11, prompt=FOUR, params=drawn, n_generations=2),
    )
    state = climb(state, Reserve(1), Prefill(both))

    waiting = [(queued.slot, queued.position) for queued in state.queue]
    firsts = [naive.generate(SIX, drawn, choice)[0][0] for choice in (0, 1)]
    firsts += [naive.generate(FOUR, drawn, choice)[0][0] for choice in (0, 1)]
    assert ((0, 1), (), (0, 3), (2,), (2,)) == rows(state)
    assert (2, 1, 2, 1, 0, 0, 0, 0) == counts(state)
    assert [(0, 6), (2, 6), (3, 4), (4, 4)] == waiting
    assert firsts == [queued.token for queued in state.queue]

    # The next round: slots 3 and 4 begin pages 4 and 5. 1*4+2, 3*4+2, 4*4+0, 5*4+0.
    after = climb(state, Round())
    assert BatchPlan(
        slot_ids=(0, 2, 3, 4),
        page_indices=((0, 1), (0, 3), (2, 4), (2, 5)),
        kv_lens=(7, 7, 5, 5),
        cu_q_lens=(0, 1, 2, 3, 4),
        num_seqs=4,
        order=(0, 1, 2, 3),
        destinations=(6, 14, 16, 20),
    ) == table.plan(after.sequences, ((0, 6), (2, 6), (3, 4), (4, 4)), 4)
    assert (2, 1, 2, 1, 1, 1, 0, 0) == counts(after)


def test_decode_stats_of_the_long_run() -> None:
    """A prompt that fills a page and 2048 new tokens use 0, 1, 33 and again 0 of 48 pages."""
    # Source: docs/sources.md, "Cleanup modes".
    # One page after prefill: prompt <= page size. The last token is never written, so
    # 33 pages after decode means 32 * size < prompt + 2047 <= 33 * size. Sizes 63 to 66 allow it,
    # and of these only 64 is a power of two; then the prompt has 2 to 64 tokens. All 2047 tokens
    # before the last are forced here, so that only one is computed.
    sizes = geometry(pages=48, page_size=64, slots=1, pages_per_seq=33)
    state = machine(sizes, queue=2047, prefill_tokens=2048, round_tokens=2046)
    prompt, decoded = span(0, 0, 64), span(0, 64, 64 + 2046)
    run = [state]

    def go(*actions: Action) -> None:
        for action in actions:
            run[-1] = MACHINE.step(run[-1], action)

    go(Reset())
    run.append(run[-1])
    go(Reserve(0), Assign(0, tuple(range(64)), Params(max_new=2048), request=0))
    go(Allocate(prompt), Write(prompt))
    run.append(run[-1])
    go(*(Enqueue(0, 7) for _ in range(2047)), Pack(), Allocate(decoded), Write(decoded), Round())
    run.append(run[-1])
    go(FreeFinished())

    assert (
        Stats(active=0, pages_in_use=0, free_pages=48, largest_count=0, pages_per_slot=(0,)),
        Stats(active=1, pages_in_use=1, free_pages=47, largest_count=1, pages_per_slot=(1,)),
        Stats(active=1, pages_in_use=33, free_pages=15, largest_count=1, pages_per_slot=(33,)),
        Stats(active=0, pages_in_use=0, free_pages=48, largest_count=0, pages_per_slot=(0,)),
    ) == stats.timeline(run)
    assert 64 + 2047 == sequence(run[2], 0).written
    assert 2048 == len(only_output(run[3])[0])
    assert FinishReason.LIMIT is only_output(run[3])[1]


def test_pages_in_use_over_a_run() -> None:
    """A sixteenth of that run, generated: pages grow one per four rounds and all return at once."""
    # Pages of 4, prompt of 4, 128 new tokens. After prefill and k rounds 4 + k cells are written,
    # so 1 + ceil(k / 4) pages; round 127 draws the last token and frees them.
    state = machine(
        geometry(pages=48, page_size=4, slots=1, pages_per_seq=33), CleanupMode.INCREMENTAL
    )
    run = [state, climb(state, Prefill((request(0, prompt=4, max_new=128),)))]
    for _ in range(127):
        run.append(MACHINE.step(run[-1], Round()))

    fours = [pages for pages in range(2, 33) for _ in range(4)]
    assert [0, 1, *fours, 33, 33, 0] == [seen.pages_in_use for seen in stats.timeline(run)]
    assert naive.generate((0, 1, 2, 3), Params(max_new=128)) == only_output(run[-1])


def test_sizing_of_a_batched_run() -> None:
    """Five prompts in two rounds of 2048 tokens use 330 of 336 pages; 240 pages are too few."""
    # Source: docs/sources.md, "Page budget".
    # ceil((5 + 2048) / 64) = 33 pages each, times 10. 336 - 330 = 6. 240 // 33 = 7.
    # Pages in use grow from 10 to 330. 5 + 2047 cells are written, in 33 pages.
    ten = tuple(request(number, prompt=5, max_new=2048) for number in range(10))
    admitted = {}
    for pages in (336, 240):
        sizes = geometry(pages=pages, page_size=64, slots=10, pages_per_seq=33)
        state = SERVING.initial(sizes, limits(sizes, prefill_tokens=20470), CleanupMode.NONE)
        for one in ten:
            state = SERVING.step(state, Submit(one))
        admitted[pages] = SERVING.step(state, Admit())
    prefilled = admitted[336]
    rest = tuple(entry for slot in range(10) for entry in span(slot, 5, 5 + 2047))
    decoded = MACHINE.step(prefilled, Allocate(rest))

    assert [33] * 10 == [one.pages_needed(sizes) for one in ten]
    assert [10, 330] == [seen.pages_in_use for seen in stats.timeline((prefilled, decoded))]
    assert 6 == stats.of(decoded).free_pages
    assert 7 == len(admitted[240].admitted)
    assert 3 == len(admitted[240].waiting)


def test_worst_case_of_a_request_with_choices() -> None:
    """Full prompt pages are counted once, the rest for each choice."""
    # Pages of 4. Prompt 6, 3 new, 2 choices: 6 // 4 = 1 and ceil(9 / 4) = 3: 1 + 2 * (3 - 1) = 5.
    # Prompt 8, 1 new, 3 choices: 2 and ceil(9 / 4) = 3: 2 + 3 * 1 = 5. Prompt 3, 1 new: 0 + 1 * 1.
    sizes = geometry(pages=8, page_size=4, slots=4, pages_per_seq=4)

    assert 5 == request(0, prompt=6, max_new=3, n=2).pages_needed(sizes)
    assert 5 == request(0, prompt=8, max_new=1, n=3).pages_needed(sizes)
    assert 1 == request(0, prompt=3, max_new=1).pages_needed(sizes)


def test_stop_goes_before_limit() -> None:
    """A token that reaches the limit and completes a stop sequence ends its request by the stop."""
    free, _ = naive.generate(SIX, Params(max_new=3))
    state = machine(geometry(pages=4, page_size=4, slots=1, pages_per_seq=3))

    for stops, reason in (
        ((), FinishReason.LIMIT),
        ((free[1:],), FinishReason.STOP),
        (((*free[:2], 1), free[2:]), FinishReason.STOP),
    ):
        asked = Request(id=0, prompt=SIX, params=Params(max_new=3, stops=stops))
        assert (free, reason) == only_output(climb(state, Prefill((asked,)), Round(), Round()))


def test_stops_match_generated_tokens_only() -> None:
    """A stop sequence that begins in the prompt does not end a request; a generated one does."""
    free, _ = naive.generate(SIX, Params(max_new=3))
    state = machine(geometry(pages=4, page_size=4, slots=1, pages_per_seq=3))
    straddling = Params(max_new=3, stops=((SIX[-1], free[0]),))
    stopping = Params(max_new=3, stops=(free[:2],))

    ran = climb(state, Prefill((Request(id=0, prompt=SIX, params=straddling),)), Round(), Round())
    stopped = climb(state, Prefill((Request(id=0, prompt=SIX, params=stopping),)), Round())
    assert (free, FinishReason.LIMIT) == only_output(ran)
    assert (free[:2], FinishReason.STOP) == only_output(stopped)


def test_finish_exactly_at_a_page_boundary() -> None:
    """A sequence whose last token would begin a page finishes in a pool that has no page left."""
    # Pages of 4, prompt of 4, 5 new tokens: cells 0 to 7 are written, in 2 pages. Token 8 is the
    # finishing one and is kept, but neither queued nor written.
    state = machine(geometry(pages=2, page_size=4, slots=1, pages_per_seq=3))
    state = climb(state, Prefill((request(0, prompt=4, max_new=5),)), *[Round()] * 4)

    assert ((0, 1),) == rows(state)
    assert (1, 1) == counts(state)
    assert (9, 8, 8) == (
        len(sequence(state, 0).tokens),
        sequence(state, 0).allocated,
        sequence(state, 0).written,
    )
    assert () == state.queue
    assert 5 == len(only_output(state)[0])
    assert (0, 0) == counts(climb(state, FreeFinished()))


def submitted(pages: int, *requests: Request) -> State:
    """An admission machine, pages of 4 and four slots, to which these are submitted."""
    sizes = geometry(pages=pages, page_size=4, slots=4, pages_per_seq=3)
    state = SERVING.initial(sizes, limits(sizes))
    for one in requests:
        state = SERVING.step(state, Submit(one))
    return state


THREE_PAGES = tuple(request(number, prompt=4, max_new=8) for number in range(3))
"""ceil((4 + 8) / 4) = 3 pages each."""
ONE_PAGE = request(3, prompt=1, max_new=3)
"""ceil((1 + 3) / 4) = 1 page."""


def test_admission_fills_the_pool_exactly() -> None:
    """Of six pages two requests of three take all, and the third waits for either to end."""
    state = SERVING.step(submitted(6, *THREE_PAGES), Admit())

    assert THREE_PAGES[:2] == state.admitted
    assert THREE_PAGES[2:] == state.waiting
    assert 6 == admission.reserved_pages(state)
    # One token came from the prefill, and 7 rounds draw the other 7 of both.
    state = SERVING.step(state, Generate())
    assert ((), 0) == (state.admitted, admission.reserved_pages(state))
    assert THREE_PAGES[2:] == SERVING.step(state, Admit()).admitted


def test_a_reservation_lasts_while_any_choice_does() -> None:
    """Of six pages a request with two choices has five: one shared, and two for each."""
    twins, other = request(0, prompt=4, max_new=8, n=2), request(1, prompt=4, max_new=4)
    state = SERVING.step(submitted(6, twins, other), Admit())
    state = SERVING.step(state, Free(1))

    assert ((twins,), 5) == (state.admitted, admission.reserved_pages(state))
    with pytest.raises(Refused, match="saw 2, allowed at most 1 unreserved pages"):
        SERVING.step(state, Admit())
    state = SERVING.step(state, Free(0))
    assert (other,) == SERVING.step(state, Admit()).admitted


def test_one_page_short_nobody_overtakes() -> None:
    """With five pages the second request waits, and behind it a small one that would fit."""
    state = SERVING.step(submitted(5, *THREE_PAGES[:2], ONE_PAGE), Admit())

    assert THREE_PAGES[:1] == state.admitted
    assert (THREE_PAGES[1], ONE_PAGE) == state.waiting
    with pytest.raises(Refused, match="saw 3, allowed at most 2 unreserved pages") as caught:
        SERVING.step(state, Admit())
    assert {Reason.OUT_OF_PAGES} == caught.value.reasons


def test_what_can_never_fit_is_refused_at_submission() -> None:
    """Three pages never fit two, five choices never fit four slots; both are refused at once."""
    too_wide = request(4, prompt=4, max_new=1, n=5)

    with pytest.raises(Refused, match="saw 3, allowed at most 2 pages in the pool") as pages:
        submitted(2, THREE_PAGES[0])
    with pytest.raises(Refused, match="saw 5, allowed at most 4 slots, one per choice") as slots:
        submitted(9, too_wide)
    assert {Reason.NEVER_FITS} == pages.value.reasons == slots.value.reasons


def test_naive_decoding_projects_5050_positions(monkeypatch: pytest.MonkeyPatch) -> None:
    """From one prompt token 100 new ones recompute 5050 positions, where a cache needs 100."""
    # Source: docs/sources.md, "Naive decoding" and "Cached decoding".
    # 100 * 101 / 2 = 5050. With a cache: one new position per step.
    projected = 0
    forward = model.forward

    def counted(tokens: Iterable[int], _window: None) -> Iterable[tuple[model.Contents, int]]:
        nonlocal projected
        for found in forward(tokens):
            projected += 1
            yield found

    monkeypatch.setattr(model, "forward", counted)
    generated, _ = naive.generate((9,), Params(max_new=100))
    monkeypatch.undo()
    state = machine(geometry(pages=7, page_size=16, slots=1, pages_per_seq=7), rounds=99)
    asked = Request(id=0, prompt=(9,), params=Params(max_new=100))
    state = MACHINE.step(MACHINE.step(state, Prefill((asked,))), Generate())

    assert 5050 == projected
    assert 100 == sequence(state, 0).written
    assert generated == only_output(state)[0]
