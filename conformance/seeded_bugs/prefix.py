"""Plants in the index of pages by content: keys, publications, hits, merges and evictions.

Rows PX, EV, and those of RC, CL, RS and RB on pages of the index, of the catalogue of real bugs.
"""

from collections.abc import Callable, Set
from typing import Final

import jax
import jax.numpy as jnp
from jax import Array, lax

from conformance.seeded_bugs import Plant, patch
from conformance.seeded_bugs.states import with_pages, with_slots
from impl import commit, entries, events, plan
from impl.models.protocol import Weights
from impl.plan import Batch, Grant
from impl.setup import Setup
from impl.state import Index, Slots, State, index
from impl.state.index import _cut_off, _out_of_its_list
from impl.state.pages import lowest_free
from impl.status import accepted, target
from impl.steps.answer import Answer
from impl.steps.prefix import _found
from spec.vocabulary import INVALID, Geometry
from spec.vocabulary.events import Event, PageKey

Between = Callable[[Set[PageKey], Set[PageKey]], tuple[Event, ...]]
CommitPages = Callable[[State, Batch, Grant, Array, Geometry], State]
CutOff = Callable[[Array, Array], Array]
DropIndex = Callable[[State, Setup], State]
Enter = Callable[[Index, Array, Array, Array, Array], Index]
Evict = Callable[[Setup, Weights, State, Array, Array, Array], Answer]
Find = Callable[[Index, Array, Array, Array], Array]
Fork = Callable[[State, Array, Array, Array, Array, Setup], State]
Found = Callable[[State, Array, Array], Array]
Hit = Callable[[State, Array, Array, Array, Geometry], State]
HitStep = Callable[[Setup, Weights, State, Array, Array], Answer]
Link = Callable[[Index, Array, Array, Array, Array], Index]
Merge = Callable[[State, Array, Array, Array, Geometry], State]
NextPages = Callable[[State, Array, int], Array]
Publish = Callable[[Setup, Weights, State, Array, Array], Answer]
Reset = Callable[[Setup, Weights, State], Answer]


def _between_with_removed(between: Between) -> Between:
    def wrong(before: Set[PageKey], after: Set[PageKey]) -> tuple[Event, ...]:
        told = between(before, after)
        again: list[Event] = [("stored", key) for word, key in reversed(told) if word == "removed"]
        return (*told, *again)

    return wrong


def _between_first_alone(between: Between) -> Between:
    def wrong(before: Set[PageKey], after: Set[PageKey]) -> tuple[Event, ...]:
        gone = before - after
        behind = {key for key in gone for one in gone if one != key and key[: len(one)] == one}
        return tuple(event for event in between(before, after) if event[1] not in behind)

    return wrong


def _published_too(
    publish: Publish, number_of: Callable[[Slots, Array, Array, int], Array]
) -> Publish:
    """A publication that also enters the first pages of the slot, as many as `number_of` says."""

    def wrong(setup: Setup, weights: Weights, state: State, slot: Array, length: Array) -> Answer:
        after, status, result = publish(setup, weights, state, slot, length)
        held, size = state.slots, setup.geometry.page_size
        number = jnp.where(accepted(status), number_of(held, slot, length, size), 0)
        texts, row = held.tokens[slot], state.pages.rows[slot]
        entered = index.enter(after.indexed, held.contexts[slot], texts, row, number)
        return after._replace(indexed=entered), status, result

    return wrong


def _publish_last_partial(publish: Publish) -> Publish:
    def rounded_up(_held: Slots, _slot: Array, length: Array, size: int) -> Array:
        return -(-length // size)

    return _published_too(publish, rounded_up)


def _publish_allocated(publish: Publish) -> Publish:
    def allocated(held: Slots, slot: Array, length: Array, size: int) -> Array:
        cells = jnp.minimum(held.allocated[slot], held.known[slot])
        return jnp.where(length == held.committed[slot], cells, 0) // size

    return _published_too(publish, allocated)


def _publish_drafts(publish: Publish) -> Publish:
    def written(held: Slots, slot: Array, length: Array, size: int) -> Array:
        return jnp.where(length == held.committed[slot], held.written[slot], 0) // size

    return _published_too(publish, written)


def _publish_releasing(publish: Publish) -> Publish:
    def wrong(setup: Setup, weights: Weights, state: State, slot: Array, length: Array) -> Answer:
        after, status, result = publish(setup, weights, state, slot, length)
        adopted = after.indexed.holds & ~state.indexed.holds
        return with_pages(after, counts=after.pages.counts - adopted), status, result

    return wrong


def _enter_second_page(_enter: Enter) -> Enter:
    def wrong(held: Index, context: Array, tokens: Array, row: Array, count: Array) -> Index:
        texts = tokens.reshape(-1, held.tokens.shape[1])
        there = held.holds.at[row].get(mode="fill", fill_value=False)

        def step(entry: Array, held: Index) -> Index:
            parent = jnp.where(entry > 0, row[entry - 1], INVALID)
            linked = index.link(held, row[entry], context, parent, texts[entry])
            return Index(
                *(jnp.where(there[entry], *both) for both in zip(held, linked, strict=True))
            )

        entered: Index = lax.fori_loop(0, count, step, held)
        return entered

    return wrong


def _enter_new_chain(enter: Enter) -> Enter:
    def wrong(held: Index, context: Array, tokens: Array, row: Array, count: Array) -> Index:
        known = jnp.sum(index.find(held, context, tokens, count) != INVALID, dtype=jnp.int32)
        rest = jnp.roll(tokens, -known * held.tokens.shape[1])
        return enter(held, context, rest, jnp.roll(row, -known), count - known)

    return wrong


def _enter_without_context(enter: Enter) -> Enter:
    return lambda held, context, tokens, row, count: enter(held, context * 0, tokens, row, count)


def _find_without_context(find: Find) -> Find:
    return lambda held, context, tokens, count: find(held, context * 0, tokens, count)


def _find_page_alone(_find: Find) -> Find:
    def wrong(held: Index, context: Array, tokens: Array, count: Array) -> Array:
        texts = tokens.reshape(-1, held.tokens.shape[1])
        equal = jnp.all(held.tokens == texts[:, None], axis=2)
        same = equal & held.holds & (held.contexts == context)
        there = jnp.any(same, axis=1) & (jnp.arange(texts.shape[0]) < count)
        first = jnp.argmax(same, axis=1).astype(jnp.int32)
        return jnp.where(jnp.cumsum(~there) == 0, first, INVALID)

    return wrong


def _first_of_bucket(_found: Found) -> Found:
    def wrong(state: State, slot: Array, pages: Array) -> Array:
        held, indexed = state.slots, state.indexed
        texts = held.tokens[slot].reshape(-1, indexed.tokens.shape[1])
        count = jnp.minimum(pages, held.known[slot] // indexed.tokens.shape[1])

        def step(carry: tuple[Array, Array], entry: Array) -> tuple[tuple[Array, Array], Array]:
            there, parent = carry
            bucket = index.bucket_of(indexed, held.contexts[slot], parent, texts[entry])
            first = indexed.buckets[bucket]
            there = there & (entry < count) & (first != INVALID)
            page = jnp.where(there, first, INVALID)
            return (there, page), page

        _, found = lax.scan(
            step, (jnp.bool_(1), jnp.int32(INVALID)), jnp.arange(texts.shape[0], dtype=jnp.int32)
        )
        return found

    return wrong


def _link_page_only(link: Link) -> Link:
    def wrong(held: Index, page: Array, context: Array, parent: Array, tokens: Array) -> Index:
        linked = link(held, page, context, parent, tokens)
        first, again, out = parent == INVALID, held.holds[page], _out_of_its_list(held, page)
        return linked._replace(
            buckets=jnp.where(first, linked.buckets, out.buckets),
            after=jnp.where(first, linked.after, out.after),
            before=jnp.where(first, linked.before, out.before.at[page].set(INVALID)),
            children=jnp.where(again, held.children, linked.children),
        )

    return wrong


def _hit_last_unpinned(hit: Hit) -> Hit:
    def wrong(state: State, slot: Array, found: Array, length: Array, geometry: Geometry) -> State:
        after = hit(state, slot, found, length, geometry)
        last = found[length // geometry.page_size - 1]
        at = target(slot < geometry.slots, last, geometry.pages)
        return with_pages(after, counts=after.pages.counts.at[at].add(-1, mode="drop"))

    return wrong


def _hit_pins_nothing(hit: Hit) -> Hit:
    def wrong(state: State, slot: Array, found: Array, length: Array, geometry: Geometry) -> State:
        after = hit(state, slot, found, length, geometry)
        return with_pages(after, counts=jnp.asarray(state.pages.counts))

    return wrong


def _hit_pins_all_found(hit: HitStep) -> HitStep:
    def wrong(setup: Setup, weights: Weights, state: State, slot: Array, length: Array) -> Answer:
        after, status, result = hit(setup, weights, state, slot, length)
        number = setup.geometry.pages_per_seq
        found = _found(state, slot, jnp.int32(number))
        more = accepted(status) & (jnp.arange(number) >= length // setup.geometry.page_size)
        at = target(more, found, setup.geometry.pages)
        counts = after.pages.counts.at[at].add(1, mode="drop")
        return with_pages(after, counts=counts), status, result

    return wrong


def _merge_counts_own_page(merge: Merge) -> Merge:
    def wrong(state: State, slot: Array, entry: Array, page: Array, geometry: Geometry) -> State:
        after = merge(state, slot, entry, page, geometry)
        return with_pages(after, counts=jnp.asarray(state.pages.counts))

    return wrong


def _merge_releases_to_root(merge: Merge) -> Merge:
    def wrong(state: State, slot: Array, entry: Array, page: Array, geometry: Geometry) -> State:
        after = merge(state, slot, entry, page, geometry)
        row = state.pages.rows.at[slot].get(mode="fill", fill_value=INVALID)
        above = target(jnp.arange(geometry.pages_per_seq) < entry, row, geometry.pages)
        return with_pages(after, counts=after.pages.counts.at[above].add(-1, mode="drop"))

    return wrong


def _idle_as_free(_next_pages: NextPages) -> NextPages:
    return lambda state, _wanted, size: lowest_free(state.pages.counts, size)


def _commit_keeping_index(commit: CommitPages) -> CommitPages:
    def wrong(state: State, batch: Batch, grant: Grant, ok: Array, geometry: Geometry) -> State:
        return commit(state, batch, grant, ok, geometry)._replace(indexed=state.indexed)

    return wrong


def _commit_keeping_keys(commit: CommitPages) -> CommitPages:
    def wrong(state: State, batch: Batch, grant: Grant, ok: Array, geometry: Geometry) -> State:
        after = commit(state, batch, grant, ok, geometry)
        gone = state.indexed.holds & ~after.indexed.holds

        def step(page: Array, held: Index) -> Index:
            out = _out_of_its_list(held, page)
            out = out._replace(before=out.before.at[page].set(INVALID))
            return Index(*(jnp.where(gone[page], *both) for both in zip(out, held, strict=True)))

        left: Index = lax.fori_loop(0, geometry.pages, step, after.indexed)
        return after._replace(indexed=left._replace(parents=state.indexed.parents))

    return wrong


def _commit_evicting_all(commit: CommitPages) -> CommitPages:
    def wrong(state: State, batch: Batch, grant: Grant, ok: Array, geometry: Geometry) -> State:
        after = commit(state, batch, grant, ok, geometry)
        evicts = jnp.any(state.indexed.holds & ~after.indexed.holds)
        idle = index.idle_pages(after.indexed, after.pages.counts)
        every = jnp.arange(geometry.pages, dtype=jnp.int32)
        return after._replace(indexed=index.without(after.indexed, every, evicts & idle))

    return wrong


def _fork_keeping_index(fork: Fork) -> Fork:
    def wrong(
        state: State, parents: Array, children: Array, choices: Array, fresh: Array, setup: Setup
    ) -> State:
        after = fork(state, parents, children, choices, fresh, setup)
        return after._replace(indexed=state.indexed)

    return wrong


def _evict_though_refused(evict: Evict) -> Evict:
    def wrong(
        setup: Setup, weights: Weights, state: State, tokens: Array, length: Array, context: Array
    ) -> Answer:
        _, status, result = evict(setup, weights, state, tokens, length, context)
        idle = with_pages(state, counts=jnp.zeros_like(state.pages.counts))
        left, *_ = evict(setup, weights, idle, tokens, length, context)
        return state._replace(indexed=left.indexed), status, result

    return wrong


def _cut_off_alone(_cut_off: CutOff) -> CutOff:
    def wrong(parents: Array, _pages: Array) -> Array:
        return parents

    return wrong


def _drop_leaving_none_stale(drop_index: DropIndex) -> DropIndex:
    def wrong(state: State, setup: Setup) -> State:
        return with_slots(drop_index(state, setup), stale=jnp.asarray(state.slots.stale))

    return wrong


def _drop_only_if_unused(drop_index: DropIndex) -> DropIndex:
    def wrong(state: State, setup: Setup) -> State:
        after, busy = drop_index(state, setup), jnp.any(state.pages.counts > 0)
        old, new = (state.indexed, state.slots), (after.indexed, after.slots)
        indexed, slots = jax.tree.map(lambda old, new: jnp.where(busy, old, new), old, new)
        return after._replace(indexed=indexed, slots=slots)

    return wrong


def _keep_index_on_reset(reset: Reset) -> Reset:
    def wrong(setup: Setup, weights: Weights, state: State) -> Answer:
        after, status, result = reset(setup, weights, state)
        return after._replace(indexed=state.indexed), status, result

    return wrong


PLANTS: Final = (
    Plant(
        id="RC3",
        thread="https://github.com/sgl-project/mini-sglang/pull/52",
        mechanism="a hit does not raise the count of the last page that it names",
        clause="RC",
        first_sight="caught",
        patches=(patch(commit.begin_with, _hit_last_unpinned),),
    ),
    Plant(
        id="RC3b",
        thread="https://github.com/sgl-project/mini-sglang/pull/46",
        mechanism="a hit raises no count: what it locks is not what it found",
        clause="RC",
        first_sight="caught",
        patches=(patch(commit.begin_with, _hit_pins_nothing),),
    ),
    Plant(
        id="RC5",
        thread="https://github.com/sgl-project/sglang/issues/35270",
        mechanism="a publication rounds up: a page that is not full enters, later under a new key",
        clause="PC",
        first_sight="caught",
        patches=(patch(entries.publish, _publish_last_partial),),
    ),
    Plant(
        id="RC6",
        thread="https://github.com/Avarok-Cybersecurity/atlas/pull/373",
        mechanism="a merge leaves the count on the slot's own page, not on that of the index",
        clause="CONS",
        first_sight="caught",
        patches=(patch(commit.merge, _merge_counts_own_page),),
    ),
    Plant(
        id="RC7",
        thread="https://github.com/bytedance-iaas/sglang/pull/508",
        mechanism="a hit raises the counts of all pages that are found, also beyond its length",
        clause="CONS",
        first_sight="caught",
        patches=(patch(entries.hit, _hit_pins_all_found),),
    ),
    Plant(
        id="CL5",
        thread="https://github.com/sgl-project/sglang-jax/issues/1618",
        mechanism="a publication releases the pages that the index has just adopted",
        clause="UAF",
        first_sight="caught",
        patches=(patch(entries.publish, _publish_releasing),),
    ),
    Plant(
        id="CL5b",
        thread="https://github.com/sgl-project/sglang-jax/issues/1618",
        mechanism="pages that the index has adopted are taken with the free ones, lowest first",
        clause="DET",
        first_sight="caught",
        patches=(patch(plan.next_pages, _idle_as_free),),
    ),
    Plant(
        id="RS3b",
        thread="https://github.com/vllm-project/vllm/pull/12284",
        mechanism="the index is not dropped while a page is in use, and the drop reports success",
        clause="DET",
        first_sight="caught",
        patches=(patch(commit.drop_index, _drop_only_if_unused),),
    ),
    Plant(
        id="RS6",
        thread="https://github.com/RLinf/RLinf/pull/96",
        mechanism="a reset leaves the index as it was",
        clause="RESET",
        first_sight="caught",
        patches=(patch(entries.reset_logical, _keep_index_on_reset),),
    ),
    Plant(
        id="PX1",
        thread="https://github.com/vllm-project/vllm/pull/4764",
        mechanism="an idle page that is taken for other tokens stays in the index",
        clause="PC",
        first_sight="caught",
        patches=(patch(commit.commit_pages, _commit_keeping_index),),
    ),
    Plant(
        id="PX1b",
        thread="https://github.com/vllm-project/vllm/pull/4764",
        mechanism="an idle page that is taken for the copy of a clone stays in the index",
        clause="PC",
        first_sight="missed",
        patches=(patch(commit.fork, _fork_keeping_index),),
    ),
    Plant(
        id="PX2",
        thread="https://github.com/vllm-project/vllm/issues/41838",
        mechanism="full pages are published once they are allocated, before they are written",
        clause="PC",
        first_sight="caught",
        patches=(patch(entries.publish, _publish_allocated),),
    ),
    Plant(
        id="PX3",
        thread="https://github.com/vllm-project/vllm/pull/3263",
        mechanism="a key leaves out the context",
        clause="PC",
        first_sight="caught",
        patches=(
            patch(index.enter, _enter_without_context),
            patch(index.find, _find_without_context),
        ),
    ),
    Plant(
        id="PX3b",
        thread="https://github.com/vllm-project/vllm/pull/3263",
        mechanism="a page is looked up by its own tokens, without those before it",
        clause="PC",
        first_sight="caught",
        patches=(patch(index.find, _find_page_alone),),
    ),
    Plant(
        id="PX4",
        thread="https://github.com/sgl-project/sglang/pull/38355",
        mechanism="published pages of a freed slot are free, and the index goes on naming them",
        clause="PC",
        first_sight="caught",
        patches=(
            patch(plan.next_pages, _idle_as_free),
            patch(commit.commit_pages, _commit_keeping_index),
        ),
    ),
    Plant(
        id="PX6b",
        thread="https://github.com/vllm-project/vllm/issues/49125",
        mechanism="a publication does not ask whether the index has the key: two pages have it",
        clause="PC",
        first_sight="caught",
        patches=(patch(index.enter, _enter_second_page),),
    ),
    Plant(
        id="PX7",
        thread="https://github.com/LMCache/LMCache/pull/4783",
        mechanism="a hit takes the first page of the bucket and does not compare its tokens",
        clause="PC",
        first_sight="caught",
        patches=(patch(_found, _first_of_bucket),),
    ),
    Plant(
        id="PX8",
        thread="https://github.com/vllm-project/vllm/issues/42125",
        mechanism="cells from before the weights changed are published under the key of new ones",
        clause="DET",
        first_sight="caught",
        patches=(patch(commit.drop_index, _drop_leaving_none_stale),),
    ),
    Plant(
        id="PX9",
        thread="https://github.com/vllm-project/vllm/pull/53532",
        mechanism="a page that extends another gets its key, and no bucket: it is never found",
        clause="ATOMIC",
        first_sight="caught",
        patches=(patch(index.link, _link_page_only),),
    ),
    Plant(
        id="PX9b",
        thread="https://github.com/ovg-project/kvcached/issues/362",
        mechanism="a page that is taken for other tokens leaves its bucket and keeps its old key",
        clause="PC",
        first_sight="caught",
        patches=(patch(commit.commit_pages, _commit_keeping_keys),),
    ),
    Plant(
        id="PX10",
        thread="https://github.com/vllm-project/vllm/pull/11186",
        mechanism="what is published behind known pages begins a chain of its own",
        clause="PC",
        first_sight="caught",
        patches=(patch(index.enter, _enter_new_chain),),
    ),
    Plant(
        id="RB3",
        thread="https://github.com/vllm-project/vllm/pull/55055",
        mechanism="full pages are published by the written length, drafts included",
        clause="PC",
        first_sight="missed",
        patches=(patch(entries.publish, _publish_drafts),),
    ),
    Plant(
        id="EV1b",
        thread="https://github.com/sgl-project/sglang/pull/27108",
        mechanism="the refusal of an eviction is ignored, and the page goes",
        clause="ATOMIC",
        first_sight="caught",
        patches=(patch(entries.evict, _evict_though_refused),),
    ),
    Plant(
        id="EV2b",
        thread="https://github.com/bytedance-iaas/sglang/pull/748",
        mechanism="a merge lowers the counts of all pages before the one that it lets go of",
        clause="UAF",
        first_sight="caught",
        patches=(patch(commit.merge, _merge_releases_to_root),),
    ),
    Plant(
        id="EV4b",
        thread="https://github.com/sgl-project/sglang/pull/31902",
        mechanism="a page leaves the index and those that extend it stay",
        clause="CHAIN",
        first_sight="caught",
        patches=(patch(_cut_off, _cut_off_alone),),
    ),
    Plant(
        id="PX6c",
        thread="https://github.com/vllm-project/vllm/issues/49125",
        mechanism="a key that has left the index is told as stored again after its removal",
        clause="EVT",
        first_sight="caught",
        patches=(patch(events.between, _between_with_removed),),
    ),
    Plant(
        id="EV4c",
        thread="https://github.com/sgl-project/sglang/pull/31902",
        mechanism="of a page and those that extend it, only the first is told to be removed",
        clause="EVT",
        first_sight="caught",
        patches=(patch(events.between, _between_first_alone),),
    ),
    Plant(
        id="EV5",
        thread="https://github.com/sgl-project/sglang/issues/4987",
        mechanism="an allocation that needs one idle page evicts every idle page",
        clause="DET",
        first_sight="caught",
        patches=(patch(commit.commit_pages, _commit_evicting_all),),
    ),
)
"""In the order of the report."""
