"""Equivalent mutants and the reason of each, by id."""

from typing import Final

LOGPROBS: Final = "the specification has no log-probabilities; the tests of the engine hold them"

CLAMPED: Final = "an array of one: an index past its end is clamped to it"

EQUIVALENT: Final[dict[str, str]] = {
    "impl.plan.sort_batch: 2 -> 3": "the third key is the index, as a stable sort has it anyway",
    "impl.plan.sort_batch: True -> False": "entries that tie are padding, or a batch to refuse",
    "impl.plan.sort_batch: 0 -> 1 (2)": "nobody reads the position of padding",
    "impl.plan.slot_guards: 1 -> 2": "the last slot id: a refusal shows it, no contract says it",
    "impl.plan.length_guard: 1 -> 2": "-1 and -2 are both less than any position",
    "impl.queue.head: 0 -> 1": "nobody reads the position of padding",
    "impl.sequences.fork: state.logprobs.at[children] -> state.logprobs.at[children + 1]": LOGPROBS,
    "impl.sequences.fork: state.logprobs[parents] -> state.logprobs[parents + 1]": LOGPROBS,
    "impl.entries.assign: 0 -> 1": CLAMPED,
    "impl.entries.assign: 0 -> 1 (2)": CLAMPED,
    "impl.entries.clone: 0 -> 1 (4)": CLAMPED,
    "impl.entries.pack: 0 -> 1": "nobody reads the token of padding",
    "impl.entries.pack: 2 -> 3": "no two entries have the same slot and position",
    "impl.state.blank_metadata: 0 -> 1": LOGPROBS,
    "impl.cache.paged.copy_page: origin < pages -> origin <= pages": (
        "what is copied is a page of a row; a copy that is called off has no destination"
    ),
    "impl.cache.paged.zero: 0 -> 1": (
        "dead cells are compared by nothing here, and zeroing kills them; the tests of the cache do"
    ),
    "impl.sequences.fork: entry < full[:, None] -> entry <= full[:, None]": (
        "a settled parent has a page there only if it is partial, and the copy takes its place"
    ),
    "impl.sequences.fork: fresh < geometry.pages -> fresh <= geometry.pages": (
        "a page past the pool is dropped by the scatter as well"
    ),
}
