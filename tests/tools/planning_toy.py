"""A small scheduler whose steps may be open, with chunks, prefixes and preemption; its bugs."""

from collections import deque
from collections.abc import Mapping, Sequence, Set
from typing import Final

from attrs import Factory, define, evolve

from conformance.harnesses.planned import OWN, Drawn, Finished, Group, Key, Pages, Plan, Row
from spec.machines import naive
from spec.vocabulary import Request, Tokens

BUGS: Final = {
    "a late result is taken": "ALONE",
    "a preempted request keeps its length": "READ",
    "a page is published before it is planned": "PC",
    "a shared page is freed by its first owner": "READ",
    "a hit leaves nothing to compute": "Q",
    "a hit is not counted in the budget": "KNOB",
    "an aborted request stays in its slot": "PROG",
    "an aborted request keeps its pages": "PROG",
    "the late result of an ended request is taken": "OUT",
    "a request that once did not fit is not begun": "PROG",
    "a row lacks its last page": "ROW",
    "a page is given twice in a step": "WX",
    "what runs goes on after all is forgotten": "READ",
    "it is said that all is forgotten": "PC",
    "a request may be too long": "PROG",
    "the last that arrived begins first": "PROG",
    "who was preempted is not counted": "PROG",
    "one alone is aborted": "FENCE",
    "an abort of what has ended fails": "ATOMIC",
    "a context is no part of a key": "PC",
    "the worker is not told what has ended": "CONS",
    "rejected drafts count as computed": "PROG",
    "a page is published with a token that no step has computed": "PC",
    "more drafts are tried than may be": "KNOB",
    "a stop inside the drafts is not heeded": "ALONE",
}
"""For each bug the clause that it violates, if the steps of the toy may be open."""


@define(eq=False)
class Job:
    """A request. text: known to the host. draws: of open steps. pending: tokens of them, if all
    drafts are kept. proposed: drafts. computed: positions that are planned. kept: those before the
    last preemption. epoch: how often it was preempted. taken: whether the worker has it. ended:
    whether it has ended.
    """

    request: Request
    text: Tokens
    draws: int = 0
    pending: int = 0
    proposed: Tokens = ()
    computed: int = 0
    kept: int = 0
    row: list[int] = Factory(list)
    epoch: int = 0
    taken: bool = False
    ended: bool = False


class Toy:
    """Running requests first, in order of arrival; the newest is preempted for a page."""

    def __init__(self, *, bug: str = "", lag: int = 1, drafts: int = 2) -> None:
        self.bug, self.lag, self.drafts, self.priorities = bug, lag, drafts, False
        self.stops, self.contexts = 2, True
        self.lacks: Set[str] = frozenset()
        self.context_of = dict[int, int]()
        self.groups: Sequence[Group] = (Group(2),)
        self.pages, self.slots, self.tokens, self.max_len = 6, 3, 5, 9
        self.counts, self.index = [0] * self.pages, dict[tuple[int, Tokens], int]()
        self.untold = list[int]()
        self.waiting, self.running = list[Job](), list[Job]()
        self.stuck = False
        self.open, self.owed = deque[list[tuple[Job, int, int]]](), list[int]()

    def arrive(self, request: Request, *, priority: int, context: int) -> None:
        """Queue a request; the toy has no priorities."""
        del priority
        room = self.max_len - len(request.prompt)
        if self.bug != "a request may be too long":
            most = min(request.params.max_new, room)
            request = evolve(request, params=evolve(request.params, max_new=most))
        self.context_of[request.id] = context
        self.waiting.append(Job(request, request.prompt))
        if self.bug == "the last that arrived begins first":
            self.waiting.insert(0, self.waiting.pop())

    def abort(self, requests: Sequence[int]) -> None:
        """Give their pages back."""
        jobs = [job for job in (*self.waiting, *self.running) if job.request.id in requests]
        if self.bug == "one alone is aborted":
            jobs = jobs[:1]
        if self.bug == "an abort of what has ended fails" and len(jobs) < len(requests):
            raise KeyError(requests)
        for job in jobs:
            self._end(job)

    def is_busy(self) -> bool:
        """Whether a request waits or runs."""
        is_wrong = self.bug == "who was preempted is not counted"
        waits = any(not (is_wrong and job.epoch) for job in self.waiting)
        return waits or bool(self.running)

    def known(self) -> list[int]:
        """Those that run, and those that have ended since the last plan."""
        return [*(job.request.id for job in self.running), *self.untold]

    def forget(self, *, preempts: bool) -> bool:
        """Preempt what runs, and forget all prefixes."""
        if not preempts and any(self.counts):
            return self.bug == "it is said that all is forgotten"
        while self.running and self.bug != "what runs goes on after all is forgotten":
            self._preempt(self.running[-1])
        self.index.clear()
        return True

    def held(self) -> list[int]:
        """The pages with a count."""
        return [page for page, count in enumerate(self.counts) if count]

    def dispatch(self) -> Plan:
        """Plan the next positions of all that run, then of all that can begin."""
        if self.bug != "the worker is not told what has ended":
            self.untold.clear()
        step, before = list[tuple[Job, int, int]](), len(self.running)
        rows = self._go_on(step)
        if len(self.running) == before:  # nobody was preempted
            rows += self._begin(self.tokens - sum(row.count for row in rows), step)
        for page in self.owed:
            self.counts[page] += 1
        self.owed.clear()
        if rows:
            self.open.append(step)
        return tuple(rows)

    def _go_on(self, step: list[tuple[Job, int, int]]) -> list[Row]:
        rows, budget = list[Row](), self.tokens
        for job in tuple(self.running):
            wanted = min(budget, self._wanted(job)) if job in self.running else 0
            drafts = self._tried(job, wanted, budget) if wanted > 0 else ()
            cells = job.computed + wanted + len(drafts)
            while job in self.running and not self._grow(job, cells):
                self._preempt(self.running[-1])
            if wanted > 0 and job in self.running:
                rows.append(self._planned(job, wanted, step, drafts))
                budget -= wanted + len(drafts)
        return rows

    def _tried(self, job: Job, wanted: int, budget: int) -> Tokens:
        """The drafts behind the known tokens of a request, if the step reads these to their end."""
        if wanted < self._wanted(job):
            return ()
        own = (OWN,) * self.drafts if self.lag else job.proposed
        room = min(budget - wanted, self.max_len - 1 - job.computed - wanted, self.drafts)
        if self.bug == "more drafts are tried than may be" and own:
            own, room = (*own, own[0]), room + 1
        return own[: max(0, room)]

    def _begin(self, budget: int, step: list[tuple[Job, int, int]]) -> list[Row]:
        rows = list[Row]()
        while self.waiting and len(self.running) < self.slots and budget > 0 and not self.stuck:
            job = self.waiting[0]
            hit = self._hit(job)
            wanted = min(budget, len(job.text) - len(hit) * 2)
            if self.bug == "a hit is not counted in the budget":
                wanted = min(budget + len(hit) * 2, len(job.text) - len(hit) * 2)
            self._hold(job, hit)
            if self.bug == "a preempted request keeps its length" and job.kept:
                job.computed, wanted = min(job.kept, len(job.text) - 1), 1
            if not self._grow(job, job.computed + wanted):
                self._release(job)
                self.stuck = self.bug == "a request that once did not fit is not begun"
                break
            self.running.append(self.waiting.pop(0))
            rows.append(self._planned(job, wanted, step))
            budget -= wanted
        return rows

    def deliver(self, drawn: Mapping[int, Drawn]) -> Mapping[int, Finished]:
        """Append what was drawn, to requests that were not preempted or aborted since."""
        ended = dict[int, Finished]()
        for job, epoch, drafts in self.open.popleft():
            late = job.epoch != epoch and self.bug != "a late result is taken"
            gone = job.ended and self.bug != "the late result of an ended request is taken"
            if late or gone or job.request.id not in drawn:
                continue
            one = drawn[job.request.id]
            job.draws, job.proposed = max(0, job.draws - 1), one.proposed
            job.pending = max(0, job.pending - 1 - drafts)
            if self.bug != "rejected drafts count as computed":
                job.computed -= one.rejected
            finished = self._append(job, one.tokens)
            if self.bug == "a page is published with a token that no step has computed":
                self._publish(job, len(job.text))
            if finished is not None:
                ended[job.request.id] = finished
                self._end(job)
        return ended

    def _append(self, job: Job, drawn: Tokens) -> Finished | None:
        """Append tokens, up to one that ends the request."""
        whole = self.bug == "a stop inside the drafts is not heeded"
        for tokens in (drawn,) if whole else ((token,) for token in drawn):
            job.text = (*job.text, *tokens)
            generated = job.text[len(job.request.prompt) :]
            reason = naive.finish(generated, job.request.params)
            if reason is not None:
                return Finished(generated, reason)
        return None

    def published(self) -> Mapping[int, Key]:
        """The pages of the index, by their keys."""
        return {page: (0, *key) for key, page in self.index.items()}

    def _wanted(self, job: Job) -> int:
        """The positions with a token, known or drawn by an open step, but for the last of all."""
        last = len(job.request.prompt) + job.request.params.max_new - 1
        if len(job.text) + job.draws > last:
            return 0
        return min(len(job.text) + job.pending, self.max_len - 1) - job.computed

    def _planned(
        self, job: Job, count: int, step: list[tuple[Job, int, int]], drafts: Tokens = ()
    ) -> Row:
        start, row = job.computed, tuple(job.row)
        text = None if job.taken else job.text
        job.taken, job.computed = True, start + count
        if job.computed == len(job.text) + job.pending:
            job.draws, job.pending = job.draws + 1, job.pending + 1 + len(drafts)
        job.computed += len(drafts)
        step.append((job, job.epoch, len(drafts)))
        ahead = 2 if self.bug == "a page is published before it is planned" else 0
        self._publish(job, min(job.computed + ahead, len(job.text)))
        if self.bug == "a row lacks its last page":
            row = row[:-1]
        return Row(job.request.id, (row,), start, count + len(drafts), text, drafts)

    def _publish(self, job: Job, end: int) -> None:
        for last in range(2, end + 1, 2):
            if last // 2 <= len(job.row):
                self.index.setdefault(self._key(job, last), job.row[last // 2 - 1])

    def _key(self, job: Job, end: int) -> tuple[int, Tokens]:
        counts = self.bug != "a context is no part of a key"
        return counts * self.context_of[job.request.id], job.text[:end]

    def _hit(self, job: Job) -> Pages:
        short = self.bug != "a hit leaves nothing to compute"
        pages = list[int]()
        for end in range(2, len(job.text) + 1 - short, 2):
            if self._key(job, end) not in self.index:
                break
            pages.append(self.index[self._key(job, end)])
        return tuple(pages)

    def _hold(self, job: Job, pages: Pages) -> None:
        for page in pages:
            self.counts[page] += 1
        job.row, job.computed = [*pages], 2 * len(pages)

    def _grow(self, job: Job, cells: int) -> bool:
        lacking = -(-cells // 2) - len(job.row)
        free = [page for page, count in enumerate(self.counts) if not count]
        if lacking > len(free):
            return False
        for page in free[: max(0, lacking)]:
            self.index = {text: at for text, at in self.index.items() if at != page}
            if self.bug == "a page is given twice in a step":
                self.owed.append(page)
            else:
                self.counts[page] += 1
            job.row.append(page)
        return True

    def _release(self, job: Job) -> None:
        for page in job.row:
            first = self.bug == "a shared page is freed by its first owner"
            self.counts[page] = 0 if first else max(0, self.counts[page] - 1)
        job.row, job.computed, job.pending, job.draws, job.proposed = [], 0, 0, 0, ()

    def _preempt(self, job: Job) -> None:
        self.running.remove(job)
        job.kept = job.computed
        self._release(job)
        job.epoch, job.taken = job.epoch + 1, False
        self.waiting.insert(0, job)

    def _end(self, job: Job) -> None:
        was_running, job.ended = job in self.running, True
        self.untold += [job.request.id] * job.taken
        if self.bug != "an aborted request keeps its pages" or not was_running:
            self._release(job)
        if self.bug == "an aborted request stays in its slot" and was_running:
            return
        for jobs in (self.waiting, self.running):
            if job in jobs:
                jobs.remove(job)
