"""Requests that begin with pages of earlier ones, by the prefixes that a trace names.

A prompt is looked up in the index. A prompt of which nothing is found is prefilled. Else what is
found is hit, and the rest is written, but for the last token, which is queued: the next round
computes it, and draws the first token. What is written of a prompt is published at once.
"""

from collections.abc import Callable, Iterable, Iterator
from functools import partial
from typing import Final

from attrs import define, evolve, field

from conformance.history import Step
from conformance.lockstep.lockstep import Lockstep
from spec import index
from spec.machines.actions import (
    Allocate,
    Assign,
    Enqueue,
    Generate,
    Hit,
    Prefill,
    Publish,
    Reserve,
    TakeOutputs,
    Write,
)
from spec.state import State
from spec.vocabulary import InvalidInput, Reason, Request, Tokens

NEEDED: Final = frozenset(
    {Reserve, Assign, Enqueue, Hit, Allocate, Write, Prefill, Publish, Generate, TakeOutputs}
)
"""The actions with which traffic is served so."""

Do = Callable[[Step], frozenset[Reason]]


@define
class Sharing:
    """Begins requests in their order, each as soon as it fits. waiting: the next one.

    queued: the ids of those of which the last token of the prompt was queued. blocks: the pages of
    all prompts, the last ones perhaps in part. hit: those of them that were hit. known: those that
    an index of any size would find.
    """

    coming: Iterator[Request]
    waiting: Request | None = None
    queued: set[int] = field(factory=set)
    blocks: int = 0
    hit: int = 0
    known: int = 0
    _seen: set[int] = field(factory=set)

    def bring(self, lockstep: Lockstep, do: Do, running: dict[int, Request]) -> int:
        """Begin requests as long as the next one fits; return how many. running: the others."""
        brought = 0
        while (request := self.waiting or next(self.coming, None)) is not None:
            self.waiting = request
            if not fits(lockstep.state, request, running):
                break
            self._begin(lockstep, do, request)
            running[request.id], self.waiting, brought = request, None, brought + 1
        return brought

    def _begin(self, lockstep: Lockstep, do: Do, request: Request) -> None:
        begin = partial(must_take, do, of=f"request {request.id}")
        prompt, size = request.prompt, lockstep.state.geometry.page_size
        slot, pages = lockstep.state.sequences.index(None), found(lockstep.state, prompt)
        self._count(prompt, pages, size)
        if pages or (request.params.max_new == 1 and len(prompt) > 1):  # a prefill would end it
            written = len(prompt) - 1
            self.queued.add(request.id)
            params = evolve(request.params, max_new=request.params.max_new + 1)
            begin(Reserve(slot))
            begin(Assign(slot, prompt[:-1], params, request.id))
            begin(Enqueue(slot, prompt[-1]))
            if pages:
                begin(Hit(slot, pages * size))
            cells = tuple((slot, position) for position in range(pages * size, written))
            begin(Allocate(cells))
            begin(Write(cells))
        else:
            written = len(prompt)
            begin(Prefill((request,)))
        if lockstep.state.sequences[slot] is not None:  # it may have finished
            begin(Publish(slot, written))

    def _count(self, prompt: Tokens, pages: int, size: int) -> None:
        self.blocks += -(-len(prompt) // size)
        self.hit += pages
        prefixes = [hash(prompt[:end]) for end in range(size, len(prompt) + 1, size)]
        self.known += sum(one in self._seen for one in prefixes[: (len(prompt) - 1) // size])
        self._seen.update(prefixes)


def found(state: State, prompt: Tokens) -> int:
    """How many pages of a prompt the index has; the last token is always computed."""
    size, pages = state.geometry.page_size, 0
    for end in range(size, len(prompt), size):
        if index.find(state.indexed, 0, prompt[:end]) is None:
            break
        pages += 1
    return pages


def fits(state: State, request: Request, running: dict[int, Request]) -> bool:
    """Whether a slot is free, and pages for every request at its end without any sharing."""
    ends = [len(one.prompt) + one.params.max_new for one in (*running.values(), request)]
    wanted = sum(map(state.geometry.pages_for, ends))
    return len(running) < state.geometry.slots and wanted <= state.geometry.pages


def must_take(do: Do, step: Step, *, of: str) -> None:
    """Take a step. of: what it is of. Raises InvalidInput if it is refused: the sizes are small."""
    reasons = do(step)
    if reasons:
        raise too_small(reasons, of=of)


def too_small(reasons: Iterable[Reason], *, of: str) -> InvalidInput:
    """The error for sizes that are too small for what is asked, and for what reasons."""
    return InvalidInput(
        of,
        seen=", ".join(sorted(reason.name for reason in reasons)),
        allowed="a request that fits the geometry",
        remedy="Raise the number of pages or slots.",
    )
