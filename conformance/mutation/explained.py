"""Equivalent mutants and the reason of each, by id."""

from typing import Final

LOGPROBS: Final = "the specification has no log-probabilities; the tests of the engine hold them"

CLAMPED: Final = "an array of one: an index past its end is clamped to it"

EQUIVALENT: Final[dict[str, str]] = {
    "impl.plan.sort_batch: 2 -> 3": "the third key is the index, as a stable sort has it anyway",
    "impl.plan.sort_batch: True -> False": "entries that tie are padding, or a batch to refuse",
    "impl.plan.sort_batch: 0 -> 1 (2)": "nobody reads the position of padding",
    "impl.plan.require_live: 1 -> 2": "the last slot id: a refusal shows it, no contract says it",
    "impl.plan.require_length: 1 -> 2": "-1 and -2 are both less than any position",
    "impl.state.queue.head: 0 -> 1": "nobody reads the position of padding",
    "impl.steps.sequences.assign: 0 -> 1": CLAMPED,
    "impl.steps.sequences.assign: 0 -> 1 (1)": CLAMPED,
    "impl.steps.sequences.clone: 0 -> 1 (2)": CLAMPED,
    "impl.steps.queueing.pack: 0 -> 1": "nobody reads the token of padding",
    "impl.steps.queueing.pack: 2 -> 3": "no two entries have the same slot and position",
    "impl.state.slots.make: 0 -> 1": LOGPROBS,
    "impl.state.outputs.make: 0 -> 1": LOGPROBS,
    "impl.cache.paged.copy_page: origin < pages -> origin <= pages": (
        "what is copied is a page of a row; a copy that is called off has no destination"
    ),
    "impl.cache.paged.zero: 0 -> 1": (
        "dead cells are compared by nothing here, and zeroing kills them; the tests of the cache do"
    ),
    "impl.state.pages.fork: entry < full[:, None] -> entry <= full[:, None]": (
        "a settled parent has a page there only if it is partial, and the copy takes its place"
    ),
    "impl.state.pages.fork: fresh < geometry.pages -> fresh <= geometry.pages": (
        "a page past the pool is dropped by the scatter as well"
    ),
}
