"""The adapter of Levanter's `InferenceEngine`, which runs a list of requests to the end.

    python -m conformance.harnesses.requests conformance.harnesses.levanter_requests:llama

It drives the installed engine with its page table, cache, attention and sampler at temperature 0;
the models are those of `conformance.harnesses.levanter_models`. One adapter serves two releases:
the current one prefills once in a call and holds pages until the next; that of autumn 2025 keeps a
queue, and releases pages as sequences end.

Like a careful caller, the adapter avoids the known findings: it refuses a request that is too long
or needs more pages than there are, gives a call no more than fits, and leaves out requests that
trigger a finding otherwise. `meet` names the finding to trigger.
"""

import logging
from collections.abc import Sequence
from dataclasses import replace
from importlib import import_module
from itertools import islice
from typing import Any, Final

from attrs import evolve

from conformance.engines import drift
from conformance.engines.levanter_calls import PACKAGES, REMEDY
from conformance.harnesses import levanter_models
from conformance.harnesses.levanter_models import Model
from conformance.harnesses.workloads import Answers
from spec.machines import admission
from spec.view import View
from spec.vocabulary import (
    INVALID,
    CleanupMode,
    Geometry,
    Reason,
    Refusal,
    Request,
    Tokens,
    default_limits,
    refused,
)

ENGINE: Final = "levanter.inference.engine"
CALLS: Final = {
    f"{ENGINE}:InferenceEngine.generate": ("self", "requests", "step_callback"),
    f"{ENGINE}:InferenceEngine.reset": ("self",),
}
KNOWN: Final = ("clones", "past-the-row", "lost", "rounds", "stops-in-the-prompt")
"""Pages of docs/findings, and one difference of its index, of both releases."""
NOW: Final = (*KNOWN, "unanswered")
THEN: Final = (*KNOWN, "reset", "refused-stays", "leftover")
MEETS: Final = {
    Reason.TOO_LONG: "past-the-row",
    Reason.NEVER_FITS: "lost",
    Reason.STOPS: "refused-stays",
}
"""Findings triggered by requests that never fit. Levanter refuses more choices than slots."""
OWN: Final = {
    "exceeds max_seqs": Reason.NEVER_FITS,
    "exceeds service capacity": Reason.STOPS,
    "Out of free pages": Reason.OUT_OF_PAGES,
}
"""Levanter's own refusals: a part of each message, and its meaning."""


def weighing(geometry: Geometry, *, meet: str | None = None) -> "Serving":
    """The engine with the model whose right answer is known by hand."""
    return Serving(geometry, levanter_models.weighing(geometry.max_len), meet=meet)


def llama(geometry: Geometry, *, meet: str | None = None) -> "Serving":
    """The engine with a small random Llama."""
    return Serving(geometry, levanter_models.llama(geometry.max_len), meet=meet)


class Serving:
    """See `conformance.harnesses.workloads.Generates`."""

    def __init__(self, geometry: Geometry, model: Model, *, meet: str | None) -> None:
        package = next((name for name in PACKAGES if drift.installed(name)), PACKAGES[0])
        drift.require(package, CALLS, remedy=REMEDY)
        self._lib = import_module(ENGINE)
        self._np, self._hax = import_module("jax.numpy"), import_module("haliax")
        self._params = import_module("levanter.inference.jit_scheduler").SeqDecodingParams
        self._invalid = import_module("levanter.inference.utils").INVALID
        for name in ("levanter", "jax._src.callback"):  # what is raised is told by the kit
            logging.getLogger(name).setLevel(logging.CRITICAL)
        self.geometry = geometry
        self.limits = evolve(
            default_limits(geometry), prefill_tokens=geometry.slots * geometry.max_len
        )
        self.queues = hasattr(self._lib.InferenceEngine, "enqueue_requests")
        self.cleanup = CleanupMode.INCREMENTAL if self.queues else CleanupMode.NONE
        self.known: Sequence[str] = THEN if self.queues else NOW
        self._clear, self._meet = frozenset(self.known) - {meet}, meet
        few = meet == "leftover" if self.queues else meet == "rounds"
        self._rounds = geometry.max_len + 1 if few else geometry.page_size
        self._model = model
        self._engine = self._made()

    def _made(self) -> Any:
        sizes, limits = self.geometry, self.limits
        config = self._lib.InferenceEngineConfig(
            max_seq_len=sizes.max_len,
            page_size=sizes.page_size,
            max_seqs=sizes.slots,
            max_pages=sizes.pages,
            max_rounds=self._rounds,
            max_tokens_per_round=1 if self._meet == "rounds" else sizes.slots,
            max_queued_tokens=limits.queue,
            max_seqs_in_prefill=sizes.slots,
            max_prefill_size=limits.prefill_tokens,
            max_stop_seqs=limits.stops,
            max_stop_tokens=limits.stop_len,
            compute_dtype=self._np.float32,
        )
        return self._lib.InferenceEngine.from_model_with_config(self._model.served, None, config)

    def next_token(self, text: Tokens) -> int | None:
        """The next token of the model without a cache."""
        return self._model.next_token(text)

    def meets(self, request: Request) -> str | None:
        """Choices of a prompt of a page or more; a stop that may begin in the prompt."""
        prompt, size = request.prompt, self.geometry.page_size
        met = {"clones"} if request.n_generations > 1 and len(prompt) >= size else set()
        for stop in request.params.stops:
            if any(prompt[-count:] == stop[:count] for count in range(1, len(stop))):
                met.add("stops-in-the-prompt")
        return min(met & self._clear, default=None)

    def room(self, requests: Sequence[Request]) -> int:
        """As many requests as cannot run out of pages, slots or, with a queue, rounds."""
        counts = range(len(requests), 1, -1)
        return next((count for count in counts if self._fit(requests[:count])), 1)

    def _fit(self, requests: Sequence[Request]) -> bool:
        sizes = self.geometry
        pages = sorted(
            sizes.pages_for(len(one.prompt) + one.params.max_new)
            for one in requests
            for _ in range(one.n_generations)
        )
        if "lost" in self._clear and sum(pages[-sizes.slots :]) > sizes.pages:
            return False
        if len(pages) <= sizes.slots:  # and a prefill takes the longest prompt of each
            return True
        if not self.queues:
            return "unanswered" not in self._clear
        calls = sum(-(-one.params.max_new // self._rounds) for one in requests)
        return "leftover" not in self._clear or calls * self._rounds <= sizes.max_len

    def generate(self, requests: Sequence[Request]) -> Answers:
        """Apply the careful caller's checks, then call Levanter."""
        self._refuse_unfit(requests)
        try:
            tokens = self._engine.generate([self._asked(one) for one in requests]).tokens
        except (RuntimeError, ValueError) as error:
            own = [reason for part, reason in OWN.items() if part in str(error)]
            if not own:
                raise
            raise refused([Refusal(reason, None, None) for reason in own]) from error
        choices = iter([tuple(one) for one in tokens])
        return [list(islice(choices, one.n_generations)) for one in requests]

    def _refuse_unfit(self, requests: Sequence[Request]) -> None:
        """The refusals that Levanter lacks."""
        for request in requests:
            for refusal in admission.fit_refusals(self.geometry, self.limits, request):
                slots = request.n_generations > self.geometry.slots
                if MEETS.get(refusal.reason) in self._clear and not slots:
                    raise refused([refusal])

    def _asked(self, request: Request) -> Any:
        """The request for Levanter, whose limit counts the prompt; stops are padded on the left."""
        prompt, params = request.prompt, request.params
        most = self._np.array(len(prompt) + params.max_new, self._np.int32)
        made = replace(self._params.default(), max_num_tokens=most)
        if params.stops:
            width = max(map(len, params.stops))
            stops = [[self._invalid] * (width - len(stop)) + [*stop] for stop in params.stops]
            array = self._np.array(stops, self._np.int32)
            made = replace(made, stop_tokens=self._hax.named(array, ("stop_seq", "position")))
        return self._lib.Request(list(prompt), request.id, made, request.n_generations)

    def observe(self) -> View:
        """Its arrays. Its only length counts the last token too, which has no cell."""
        state = self._engine.gen_state.decode_state
        table = state.sequences
        used = table.used_mask.array.tolist()
        lengths = zip(table.seq_lens.array.tolist(), used, strict=True)
        rows = table.page_indices.array.tolist()
        return View(
            geometry=self.geometry,
            counts=tuple(state.page_table.page_ref_counts.array.tolist()),
            used=tuple(used),
            rows=tuple(
                tuple(INVALID if page == self._invalid else page for page in row) for row in rows
            ),
            allocated=tuple(length - 1 if held else 0 for length, held in lengths),
        )

    def reset(self) -> None:
        """Levanter's own reset; a new engine where that ends the old one."""
        if "reset" in self._clear:
            self._engine = self._made()
        else:
            self._engine.reset()
