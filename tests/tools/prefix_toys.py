"""A toy engine with a prefix cache and policies of its own, which it follows unasked; and its bugs.

It publishes when cells are written or when a sequence ends, evicts the page that became idle first
or last, and either keeps several pages of one key or merges them.
"""

from typing import Final, Literal

from attrs import frozen

from conformance.protocol import Action, Profile, Result
from spec.machines import actions as act
from spec.machines.actions import Evict, Merge, Publish
from spec.table import by_slot
from spec.view import View
from spec.vocabulary import CleanupMode, Geometry, Limits, Reason, Tokens, refused

OFFERED: Final = frozenset(
    {act.Reserve, act.Assign, act.Append, act.Allocate, act.Write, act.Hit, act.Free, act.Reset}
)
BUGS: Final = (
    "publishes what is not written",
    "publishes a page that is not full",
    "evicts a page of a row",
    "forgets to take a page out of the index",
    "hits a page of another text",
    "hits without a name",
    "finds a page by its own tokens alone",
    "frees for all",
    "frees twice",
    "ignores contexts",
    "merges pages of other texts",
    "merges without letting go",
    "keeps what extends a page that is gone",
    "loses an idle page",
    "the key moves to a page of another text",
    "keeps the index at a reset",
    "refuses while idle pages are left",
)


@frozen
class Policy:
    """How the toy decides. publish: when. evict: which idle page. twins: whether to merge."""

    publish: Literal["written", "ended"] = "written"
    evict: Literal["oldest", "newest"] = "oldest"
    twins: Literal["kept", "merged"] = "kept"

    @property
    def unasked(self) -> frozenset[type]:
        """The actions that follow from it."""
        return frozenset({Publish, Evict} | ({Merge} if self.twins == "merged" else set()))


POLICIES: Final = {
    "as vLLM": Policy(),
    "newest": Policy(evict="newest"),
    "as transformers": Policy(twins="merged"),
    "at the end": Policy(publish="ended"),
}
Key = tuple[int, Tokens]


class PrefixToy:
    """See `conformance.protocol.Engine`. bug: one of BUGS, or none."""

    def __init__(
        self,
        geometry: Geometry,
        limits: Limits,
        cleanup: CleanupMode,
        *,
        policy: Policy,
        bug: str = "",
    ) -> None:
        self.profile = Profile(
            name="prefix toy",
            geometry=geometry,
            limits=limits,
            cleanup=cleanup,
            actions=OFFERED,
            unasked=policy.unasked,
            policy="any",
            batches="one slot",
            guarded=frozenset(Reason) - {Reason.OUT_OF_PAGES},
        )
        self._policy, self._bug, self._size = policy, bug, geometry.page_size
        self._pages: dict[Key, list[int]] = {}
        self._start()

    def _start(self) -> None:
        geometry = self.profile.geometry
        self._free = list(range(geometry.pages))
        self._counts = [0] * geometry.pages
        self._idle: list[int] = []
        if self._bug != "keeps the index at a reset":
            self._pages = {}
        self._cells: list[object] = [None] * (geometry.pages * self._size)
        self._rows: dict[int, list[int]] = {}
        self._texts: dict[int, list[int]] = {}
        self._contexts: dict[int, int] = {}
        self._written: dict[int, int] = {}
        self._allocated: dict[int, int] = {}

    def apply(self, action: Action) -> Result:
        """Take an action."""
        match action:
            case act.Reserve(int(slot), context):
                self._rows[slot], self._texts[slot] = [], []
                self._contexts[slot] = context if self._bug != "ignores contexts" else 0
                self._written[slot] = self._allocated[slot] = 0
            case act.Assign(slot=int(slot), prompt=tokens) | act.Append(int(slot), tokens):
                self._texts[slot] += tokens
            case act.Allocate(batch):
                for slot, positions in by_slot(batch).items():
                    self._allocate(slot, len(positions))
            case act.Write(batch):
                for slot, positions in by_slot(batch).items():
                    self._write(slot, len(positions))
            case act.Hit(slot, length):
                self._hit(slot, length // self._size)
            case act.Free(int(slot)):
                self._release(slot)
            case act.Reset():
                self._start()
        return None

    def observe(self) -> View:
        """Everything but how idle pages are ranked."""
        geometry = self.profile.geometry
        slots = range(geometry.slots)
        keys = {pages[0]: (context, *text) for (context, text), pages in self._pages.items()}
        return View(
            geometry=geometry,
            counts=tuple(
                count or int(page not in self._free and page not in self._idle)
                for page, count in enumerate(self._counts)
            ),
            used=tuple(slot in self._rows for slot in slots),
            rows=[self._rows.get(slot, ()) for slot in slots],
            tokens=[tuple(self._texts.get(slot, ())) for slot in slots],
            allocated=[self._allocated.get(slot, 0) for slot in slots],
            written=[self._written.get(slot, 0) for slot in slots],
            contexts=[self._contexts.get(slot, 0) for slot in slots],
            indexed=tuple(keys.get(page, ()) for page in range(geometry.pages)),
            cells=tuple(self._cells),
        )

    def _allocate(self, slot: int, more: int) -> None:
        end = self._allocated[slot] + more
        wanted = -(-end // self._size) - len(self._rows[slot])
        spare = len(self._free) + len(self._idle)
        if self._bug == "refuses while idle pages are left":
            spare = len(self._free) + (len(self._idle) > 1) * len(self._idle)
        if wanted > spare:
            raise refused(Reason.OUT_OF_PAGES)
        for _ in range(wanted):
            page = self._take()
            self._counts[page] += 1
            self._rows[slot].append(page)
        self._allocated[slot] = end
        if self._bug == "publishes what is not written":
            self._publish(slot, min(end, len(self._texts[slot])))

    def _take(self) -> int:
        if self._free:
            return self._free.pop()
        if self._bug == "evicts a page of a row" and len(self._pages) > 2:
            self._leave(next(iter(self._pages.values()))[0])
            if self._free:
                return self._free.pop()
        page = self._idle.pop(0 if self._policy.evict == "oldest" else -1)
        if self._bug != "forgets to take a page out of the index":
            self._leave(page)
        return page

    def _leave(self, page: int) -> None:
        """Take a page out of the index, with all that extend it if its key is gone."""
        for key, pages in tuple(self._pages.items()):
            if page in pages:
                pages.remove(page)
                if not pages:
                    del self._pages[key]
                    self._cut(key)
                elif self._bug == "the key moves to a page of another text":
                    pages[:] = [(pages[0] + 1) % self.profile.geometry.pages]

    def _cut(self, key: Key) -> None:
        if self._bug == "keeps what extends a page that is gone":
            return
        context, text = key
        for other, pages in tuple(self._pages.items()):
            if other[0] == context and other[1][: len(text)] == text:
                del self._pages[other]
                for page in pages:
                    if page in self._idle:
                        self._idle.remove(page)
                        self._free.append(page)

    def _write(self, slot: int, more: int) -> None:
        for position in range(self._written[slot], self._written[slot] + more):
            page = self._rows[slot][position // self._size]
            text = tuple(self._texts[slot][: position + 1])
            self._cells[page * self._size + position % self._size] = text
        self._written[slot] += more
        if self._policy.publish == "written":
            self._publish(slot, self._written[slot])

    def _publish(self, slot: int, end: int) -> None:
        if self._bug == "publishes a page that is not full":
            end += self._size - 1
        for place in range(min(end, len(self._texts[slot])) // self._size):
            key, page = self._key(slot, place), self._rows[slot][place]
            pages = self._pages.setdefault(key, [])
            if page in pages:
                continue
            if not pages or self._policy.twins == "kept":
                pages.append(page)
            else:
                self._merge(slot, place, pages[0])
        if self._bug == "publishes a page that is not full" and end % self._size:
            self._early(slot, end)

    def _early(self, slot: int, end: int) -> None:
        """Enter the page that is being written, with the text that is known."""
        text, place = self._texts[slot], end // self._size
        if len(text) >= (place + 1) * self._size and place < len(self._rows[slot]):
            self._pages.setdefault(self._key(slot, place), []).append(self._rows[slot][place])

    def _merge(self, slot: int, place: int, page: int) -> None:
        old = self._rows[slot][place]
        if self._bug == "merges pages of other texts" and len(self._pages) > 1:
            page = [*self._pages.values()][-1][0]
        self._rows[slot][place] = page
        self._name(page)
        if self._bug != "merges without letting go":
            self._let_go(old)

    def _key(self, slot: int, place: int) -> Key:
        return self._contexts[slot], tuple(self._texts[slot][: (place + 1) * self._size])

    def _hit(self, slot: int, pages: int) -> None:
        for place in range(pages):
            page = self._find(self._key(slot, place))
            if self._bug == "hits a page of another text" and place:
                page = self._rows[slot][0]
            self._rows[slot].append(page)
            if self._bug != "hits without a name":
                self._name(page)
            elif page in self._idle:
                self._idle.remove(page)
        self._written[slot] = self._allocated[slot] = pages * self._size

    def _find(self, key: Key) -> int:
        if self._bug != "finds a page by its own tokens alone":
            return self._pages[key][0]
        own = key[1][-self._size :]
        return next(
            pages[0] for (_, text), pages in self._pages.items() if text[-len(own) :] == own
        )

    def _name(self, page: int) -> None:
        self._counts[page] += 1
        if page in self._idle:
            self._idle.remove(page)

    def _let_go(self, page: int) -> None:
        self._counts[page] -= self._counts[page] if self._bug == "frees for all" else 1
        if self._counts[page] == 0:
            kept = any(page in pages for pages in self._pages.values())
            if not (kept and self._bug == "loses an idle page" and self._idle):
                (self._idle if kept else self._free).append(page)
            if not kept and self._bug == "frees twice":
                self._free.append(page)

    def _release(self, slot: int) -> None:
        if self._policy.publish == "ended":
            self._publish(slot, self._written[slot])
        first_first = self._bug == "keeps what extends a page that is gone"
        for page in self._rows.pop(slot)[:: 1 if first_first else -1]:
            self._let_go(page)
        for told in (self._texts, self._contexts, self._written, self._allocated):
            del told[slot]


def make(
    policy: str, bug: str, geometry: Geometry, limits: Limits, cleanup: CleanupMode
) -> PrefixToy:
    """A factory, with the policy and the bug given first."""
    return PrefixToy(geometry, limits, cleanup, policy=POLICIES[policy], bug=bug)
