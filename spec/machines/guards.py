"""Why a scheduling action is refused: the guards of rung 5, one generator per action.

Each is told what it looks at: the lifecycle state below, the limits, and how much is queued. What
the rungs below refuse is refused here too.
"""

from collections.abc import Collection, Iterator

from spec.machines import lifecycle
from spec.machines.actions import Allocate, Append, Assign, Clone, Enqueue, Write
from spec.machines.pages import used
from spec.table import Entry
from spec.vocabulary import Geometry, Limits, Reason, Refusal, Request, Tokens
from spec.vocabulary.errors import Family


def stop_refusals(limits: Limits, stops: tuple[Tokens, ...]) -> Iterator[Refusal]:
    """Stop sequences must fit their static table."""
    longest = max((len(stop) for stop in stops), default=0)
    if len(stops) > limits.stops or longest > limits.stop_len:
        allowed = f"at most {limits.stops} of {limits.stop_len} tokens"
        yield Refusal(Reason.STOPS, f"{len(stops)}, the longest of {longest} tokens", allowed)


def prefill_pages(geometry: Geometry, request: Request) -> int:
    """Pages that prefilling a request takes: its prompt, a partial page for each further choice."""
    partial = len(request.prompt) % geometry.page_size != 0
    return geometry.pages_for(len(request.prompt)) + partial * (request.n_generations - 1)


def assign(below: lifecycle.State, limits: Limits, action: Assign) -> Iterator[Refusal]:
    """A prompt for a slot without one."""
    yield from stop_refusals(limits, action.params.stops)
    yield from lifecycle.refusals(below, action)


def batch(
    below: lifecycle.State, limits: Limits, action: Allocate | Write, *, waiting: Collection[Entry]
) -> Iterator[Refusal]:
    """A batch of cells; what is `waiting` in the queue is a round's to write."""
    if len(action.batch) > limits.prefill_tokens:
        allowed = f"at most {limits.prefill_tokens} entries"
        yield Refusal(Reason.BATCH_WIDTH, len(action.batch), allowed)
        return
    found = lifecycle.refusals(below, action)
    yield from found
    queued = [entry for entry in action.batch if entry in waiting]
    if isinstance(action, Write) and queued and not found:
        yield Refusal(Reason.BATCH_QUEUED, queued, "tokens that have left the queue")


def enqueue(
    below: lifecycle.State, limits: Limits, action: Enqueue, *, queued: int
) -> Iterator[Refusal]:
    """A token that goes on with a sequence and leaves room to draw at least one more."""
    found = lifecycle.refusals(below, Append(action.slot, (action.token,)))
    yield from found
    if any(refusal.reason.family is Family.SLOT for refusal in found):
        return
    detail = lifecycle.detail_of(below, action.slot)
    generated = len(used(below.sharing.pages, action.slot).tokens) - detail.prompt_len
    if generated + 1 >= detail.params.max_new:
        allowed = f"fewer than {detail.params.max_new - 1} generated tokens"
        yield Refusal(Reason.TOO_LONG, generated, allowed)
    if queued == limits.queue:
        yield Refusal(Reason.QUEUE_FULL, queued, f"below {limits.queue}")


def clone(
    below: lifecycle.State, limits: Limits, action: Clone, *, queued: int
) -> Iterator[Refusal]:
    """A clone, whose pending tokens make `queued` entries in all."""
    found = lifecycle.refusals(below, action)
    yield from found
    if any(refusal.reason.family is Family.SLOT for refusal in found):
        return
    if queued > limits.queue:
        yield Refusal(Reason.QUEUE_FULL, queued, f"up to {limits.queue}")


def decode_round(
    below: lifecycle.State, limits: Limits, parts: tuple[lifecycle.Action, ...]
) -> Iterator[Refusal]:
    """A round that consists of these lifecycle actions: allocate, write, samples."""
    allocate, _, *samples = parts
    assert isinstance(allocate, Allocate)
    if not allocate.batch:
        yield Refusal(Reason.QUEUE_EMPTY, 0, "at least 1 queued token")
        return
    table = below.sharing.pages
    unsettled = [slot for slot, _ in filter(None, allocate.batch) if not used(table, slot).settled]
    if unsettled:
        yield Refusal(Reason.UNWRITTEN, unsettled, "slots whose allocated cells are written")
        return
    yield from lifecycle.refusals(below, allocate)
    yield from _output_refusals(below, limits, len(samples))


def prefill(
    below: lifecycle.State, limits: Limits, requests: tuple[Request, ...], *, queued: int
) -> Iterator[Refusal]:
    """Prompts read at once. A later stage is asked only if the earlier ones found nothing."""
    yield from (
        list(_width_refusals(limits, requests))
        or list(_request_refusals(below, limits, requests))
        or list(_room_refusals(below, limits, requests, queued=queued))
    )


def _width_refusals(limits: Limits, requests: tuple[Request, ...]) -> Iterator[Refusal]:
    tokens = sum(len(request.prompt) for request in requests)
    if not 0 < len(requests) <= limits.prefill_seqs or tokens > limits.prefill_tokens:
        allowed = f"1 to {limits.prefill_seqs} prompts, at most {limits.prefill_tokens} tokens"
        yield Refusal(Reason.PREFILL_WIDTH, f"{len(requests)} prompts, {tokens} tokens", allowed)


def _request_refusals(
    below: lifecycle.State, limits: Limits, requests: tuple[Request, ...]
) -> Iterator[Refusal]:
    taken = lifecycle.taken_keys(below)
    ids = [request.id for request in requests]
    for request in requests:
        yield from lifecycle.request_refusals(below.geometry, len(request.prompt), request.params)
        yield from stop_refusals(limits, request.params.stops)
        keys = {(request.id, choice) for choice in range(request.n_generations)}
        if keys & taken or ids.count(request.id) > 1:
            yield Refusal(Reason.CHOICE_TAKEN, request.id, "an unused request id")


def _room_refusals(
    below: lifecycle.State, limits: Limits, requests: tuple[Request, ...], *, queued: int
) -> Iterator[Refusal]:
    choices = sum(request.n_generations for request in requests)
    free_slots = below.sequences.count(None)
    if choices > free_slots:
        yield Refusal(Reason.NO_FREE_SLOT, choices, f"at most {free_slots} choices")
    wanted = sum(prefill_pages(below.geometry, request) for request in requests)
    free = below.sharing.counts.count(0)
    if wanted > free:
        yield Refusal(Reason.OUT_OF_PAGES, wanted, f"at most {free} pages")
    if queued + choices > limits.queue:
        yield Refusal(Reason.QUEUE_FULL, queued + choices, f"up to {limits.queue}")
    yield from _output_refusals(below, limits, choices)


def _output_refusals(below: lifecycle.State, limits: Limits, samples: int) -> Iterator[Refusal]:
    """Each sequence that samples may finish, so there must be room for all of them."""
    outputs = len(below.outputs) + samples
    if outputs > limits.outputs:
        yield Refusal(Reason.OUTPUTS_FULL, outputs, f"up to {limits.outputs} outputs")
