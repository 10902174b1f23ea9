"""The adapter of vLLM v1's scheduler with its cache manager, without a worker, model or network.

    python -m conformance.harnesses.plans conformance.harnesses.vllm_scheduler:make_async

`schedule()` is the dispatch of a step, `update_from_output()` its delivery. `make` has the
`Scheduler`, of which each step is delivered before the next; `make_async` the `AsyncScheduler`,
of which a step may be open when another is dispatched. Prefixes are kept, and prompts are read in
chunks. The worker gets what the plan says, as vLLM's first model runner takes it: a new request
with its prompt and blocks; of one that it has, the blocks to append; of one that is resumed after a
preemption, all tokens and blocks anew.

Block 0 of vLLM stands for no block and is never given out, so page p here is its block p + 1. The
pool can hold one longest request: vLLM checks that when it starts, and would stall otherwise.

The calls are compared with those of 0.32.0, unless the environment has a value for ANY_RELEASE.
"""

import logging
import os
from collections import deque
from collections.abc import Mapping, Sequence, Set
from importlib import import_module
from types import SimpleNamespace
from typing import Any, Final

from conformance.engines import drift
from conformance.engines.vllm import PACKAGE, REMEDY
from conformance.harnesses.planned import Drawn, Finished, Group, Key, Pages, Plan, Row
from conformance.harnesses.workloads import Broken
from spec.vocabulary import INVALID, FinishReason, Request, Tokens

ANY_RELEASE: Final = "KVSPEC_ANY_VLLM"
SIZE: Final = 2
"""Cells in a page; a chunk has several, so that some are left if a page of them is taken."""
FULL: Final = (Group(SIZE),)
HYBRID: Final = (Group(SIZE), Group(SIZE, window=5))
PAGES: Final = {FULL: 16, HYBRID: 34}
SLOTS: Final = 3
TOKENS: Final = 16
CHUNK: Final = 8
"""The most tokens of one prompt in a step that others wait for, so that it reads several parts."""
MAX_LEN: Final = 32
DRAFTS: Final = 3
_SCHEDULER: Final = "vllm.v1.core.sched.scheduler"
_ASYNC: Final = "vllm.v1.core.sched.async_scheduler"
_CONFIG: Final = "vllm.config"
_INTERFACE: Final = "vllm.v1.kv_cache_interface"
_REQUEST: Final = "vllm.v1.request"
_UTILS: Final = "vllm.v1.core.kv_cache_utils"
_OUTPUTS: Final = "vllm.v1.outputs"
CALLS: Final[Mapping[str, tuple[str, ...]]] = {
    f"{_SCHEDULER}:Scheduler.schedule": ("self", "throttle_prefills"),
    f"{_SCHEDULER}:Scheduler.update_from_output": (
        "self", "scheduler_output", "model_runner_output",
    ),
    f"{_SCHEDULER}:Scheduler.add_request": ("self", "request"),
    f"{_SCHEDULER}:Scheduler.finish_requests": ("self", "request_ids", "finished_status"),
    f"{_SCHEDULER}:Scheduler.reset_prefix_cache": (
        "self", "reset_running_requests", "reset_connector",
    ),
    f"{_SCHEDULER}:Scheduler.update_draft_token_ids": ("self", "draft_token_ids"),
    f"{_UTILS}:get_block_hash": ("key",),
    f"{_UTILS}:get_group_id": ("key",),
}  # fmt: skip
"""The calls, with the parameters of vllm-tpu 0.32.0."""


REASONS: Final = {"stop": FinishReason.STOP, "length": FinishReason.LIMIT}
"""The reasons of vLLM for the end of a request that was not aborted."""
_GRAMMAR: Final = SimpleNamespace(
    accept_tokens=lambda *_: True,
    should_advance=lambda *_, **__: False,
    validate_tokens=lambda _, drafts: drafts,
)
"""Stands in for the manager of structured outputs, which none of the requests has."""


def make() -> "Scheduler":
    """The scheduler whose steps are delivered one by one."""
    return Scheduler(FULL, lag=0)


def make_async() -> "Scheduler":
    """The scheduler that plans a step while the last one is open."""
    return Scheduler(FULL, lag=1)


def make_hybrid() -> "Scheduler":
    """The first one for layers of which some have a window, and rows of their own."""
    return Scheduler(HYBRID, lag=0)


def make_hybrid_async() -> "Scheduler":
    """The second one for such layers."""
    return Scheduler(HYBRID, lag=1)


def make_pipelined() -> "Scheduler":
    """The second one with two steps open when another is planned, as with a pipeline of two."""
    return Scheduler(FULL, lag=2)


def make_priority() -> "Scheduler":
    """The first one, in which a request of a higher priority takes the blocks of others."""
    return Scheduler(FULL, lag=0, policy="priority")


def make_priority_async() -> "Scheduler":
    """The same, which plans a step while the last one is open."""
    return Scheduler(FULL, lag=1, policy="priority")


def make_drafts() -> "Scheduler":
    """The first one, which tries drafts that a proposer without layers of its own makes."""
    return Scheduler(FULL, lag=0, drafts=DRAFTS)


def make_drafts_async() -> "Scheduler":
    """The second one, which tries drafts that layers of their own make."""
    return Scheduler(FULL, lag=1, drafts=DRAFTS)


def make_drafts_hybrid() -> "Scheduler":
    """As `make_drafts`, for layers of which some have a window."""
    return Scheduler(HYBRID, lag=0, drafts=DRAFTS)


def make_drafts_hybrid_async() -> "Scheduler":
    """As `make_drafts_async`, for such layers."""
    return Scheduler(HYBRID, lag=1, drafts=DRAFTS)


class Scheduler:
    """See `conformance.harnesses.planned.Schedules`. Raises InvalidInput without vLLM 0.32.0."""

    def __init__(
        self,
        groups: tuple[Group, ...],
        *,
        lag: int,
        drafts: int = 0,
        policy: str = "fcfs",
    ) -> None:
        os.environ["VLLM_USE_V2_MODEL_RUNNER"] = "0"
        logger = logging.getLogger("vllm")
        if logger.level != logging.ERROR:  # it warns of each reset that is refused
            logger.setLevel(logging.ERROR)
        drift.require_installed(
            PACKAGE, _SCHEDULER, allowed="vllm-tpu 0.32.0, installed", remedy=REMEDY
        )
        self._pinned = not os.environ.get(ANY_RELEASE)
        if self._pinned:
            drift.require(PACKAGE, CALLS, remedy=REMEDY)
        self.groups: Sequence[Group] = groups
        self.pages, self.slots, self.tokens, self.max_len = PAGES[groups], SLOTS, TOKENS, MAX_LEN
        self.lag, self.drafts, self.stops = lag, drafts, 2
        self.priorities, self.contexts = policy == "priority", True
        self.lacks: Set[str] = frozenset()
        self._request, utils = import_module(_REQUEST), import_module(_UTILS)
        hashing = import_module("vllm.utils.hashing").sha256
        utils.init_none_hash(hashing)
        self._hasher = utils.get_request_block_hasher(SIZE, hashing)
        name = f"{_ASYNC}:AsyncScheduler" if lag else f"{_SCHEDULER}:Scheduler"
        module, _, kind = name.partition(":")
        self.scheduler = getattr(import_module(module), kind)(
            _config(self.pages, lag=lag, drafts=drafts, policy=policy),
            _cache_config(groups),
            _GRAMMAR,
            block_size=SIZE,
        )
        self._open = deque[Any]()
        self._tables = dict[str, list[list[int]]]()
        self._texts = dict[str, tuple[int, ...]]()
        self._asked = list[tuple[Any, int]]()
        self._keys = dict[bytes, tuple[int, Tokens]]()
        self._hash_of, self._group_of = utils.get_block_hash, utils.get_group_id

    def arrive(self, request: Request, *, priority: int, context: int) -> None:
        """Queue a request, of one of two clients. For one of them a stop is the end of a text."""
        stops = [stop[0] for stop in request.params.stops]
        ends = stops and self._pinned and _client(request.id) == 1
        params = import_module("vllm").SamplingParams(
            max_tokens=request.params.max_new,
            temperature=0.0,
            ignore_eos=not ends,
            stop_token_ids=stops[1:] if ends else stops,
        )
        if ends:  # as the front end does, with the token of the model
            params.update_from_generation_config({}, stops[0])
        asked = self._request.Request(
            str(request.id),
            list(request.prompt),
            params,
            None,
            client_index=_client(request.id),
            arrival_time=float(request.id),
            cache_salt=str(context) if context else None,
            priority=priority,
            block_hasher=self._hasher,
        )
        self._asked.append((asked, context))
        self.scheduler.add_request(asked)

    def abort(self, requests: Sequence[int]) -> None:
        """Abort requests."""
        aborted = self._request.RequestStatus.FINISHED_ABORTED
        self.scheduler.finish_requests([*map(str, requests)], aborted)

    def dispatch(self) -> Plan:
        """Plan a step. One without tokens is delivered at once."""
        planned = self.scheduler.schedule()
        for name in planned.finished_req_ids:
            self._tables.pop(name, None)
        rows = (*self._new(planned), *self._cached(planned))
        if rows:
            self._open.append(planned)
        else:
            self.scheduler.update_from_output(planned, _outputs((), {}))
        return rows

    def deliver(self, drawn: Mapping[int, Drawn]) -> Mapping[int, Finished]:
        """Deliver the oldest step; drafts for the next, unless the worker keeps them."""
        planned = self._open.popleft()
        names = tuple(planned.num_scheduled_tokens)[::-1]  # the worker may take them in any order
        told = self.scheduler.update_from_output(planned, _outputs(names, drawn))
        ended = dict[int, Finished]()
        for client, output in ((at, one) for at, found in told.items() for one in found.outputs):
            if client != _client(int(output.request_id)):
                raise Broken("OUT", f"client {client} is told of request {output.request_id}")
            self._texts[output.request_id] += tuple(output.new_token_ids)
            if output.finish_reason is not None:
                ended[int(output.request_id)] = self._ended(output)
        if self.drafts and not self.lag:
            proposed = {str(name): [*one.proposed] for name, one in drawn.items()}
            drafts = import_module(_OUTPUTS).DraftTokenIds([*proposed], [*proposed.values()])
            self.scheduler.update_draft_token_ids(drafts)
        return ended

    def published(self) -> Mapping[int, Key]:
        """The blocks with a hash, each of which is one of some request's text."""
        for asked, context in self._asked:
            for at, key in enumerate(asked.block_hashes):
                if key not in self._keys:
                    self._keys[key] = context, tuple(asked.all_token_ids[: (at + 1) * SIZE])
        found = dict[int, Key]()
        for block in self.scheduler.kv_cache_manager.block_pool.blocks[1:]:
            if block.block_hash is None:
                continue
            page, key = block.block_id - 1, self._hash_of(block.block_hash)
            if key not in self._keys:
                raise Broken("PC", f"page {page} is published under a hash of no request's text")
            found[page] = self._group_of(block.block_hash), *self._keys[key]
        return found

    def forget(self, *, preempts: bool) -> bool:
        """Reset the prefix cache."""
        return bool(self.scheduler.reset_prefix_cache(reset_running_requests=preempts))

    def is_busy(self) -> bool:
        """Whether the scheduler has requests that have not ended."""
        return bool(self.scheduler.has_unfinished_requests())

    def held(self) -> Sequence[int]:
        """The blocks with a count, but for the one that stands for none."""
        blocks = self.scheduler.kv_cache_manager.block_pool.blocks
        return [block.block_id - 1 for block in blocks[1:] if block.ref_cnt]

    def known(self) -> Sequence[int]:
        """The requests with a table."""
        return [*map(int, self._tables)]

    def _new(self, planned: Any) -> list[Row]:
        rows = list[Row]()
        for one in planned.scheduled_new_reqs:
            self._tables[one.req_id] = [list(blocks) for blocks in one.block_ids]
            self._texts[one.req_id] = ()
            text = tuple(one.prompt_token_ids)
            rows.append(self._row(planned, one.req_id, one.num_computed_tokens, text))
        return rows

    def _cached(self, planned: Any) -> list[Row]:
        rows, cached = list[Row](), planned.scheduled_cached_reqs
        for name, blocks, computed in zip(
            cached.req_ids, cached.new_block_ids, cached.num_computed_tokens, strict=True
        ):
            text = None
            if name not in self._tables:
                raise Broken("FENCE", f"request {name} goes on, and the worker had to forget it")
            if name in cached.resumed_req_ids:
                self._tables[name] = [list(group) for group in blocks]
                text = tuple(cached.all_token_ids[name])
            elif blocks is not None:
                for table, more in zip(self._tables[name], blocks, strict=True):
                    table.extend(more)
            rows.append(self._row(planned, name, computed, text))
        return rows

    def _row(self, planned: Any, name: str, start: int, text: tuple[int, ...] | None) -> Row:
        tables = tuple(map(_pages, self._tables[name]))
        drafts = tuple(planned.scheduled_spec_decode_tokens.get(name, ()))
        return Row(int(name), tables, start, planned.num_scheduled_tokens[name], text, drafts)

    def _ended(self, output: Any) -> Finished:
        reason = REASONS.get(str(output.finish_reason))
        if reason is None:
            raise Broken("OUT", f"request {output.request_id} ends as {output.finish_reason}")
        return Finished(self._texts[output.request_id], reason)


def _client(request: int) -> int:
    """The client of a request."""
    return request % 2


def _pages(blocks: Sequence[int]) -> Pages:
    return tuple(block - 1 if block else INVALID for block in blocks)


def _outputs(names: Sequence[str], drawn: Mapping[int, Drawn]) -> Any:
    return import_module(_OUTPUTS).ModelRunnerOutput(
        req_ids=list(names),
        req_id_to_index={name: at for at, name in enumerate(names)},
        sampled_token_ids=[
            [*drawn[int(name)].tokens] if int(name) in drawn else [] for name in names
        ],
    )


def _cache_config(groups: tuple[Group, ...]) -> Any:
    interface, dtype = import_module(_INTERFACE), import_module("torch").float32
    sizes = {"block_size": SIZE, "num_kv_heads": 1, "head_size": 1, "dtype": dtype}
    named = [
        interface.KVCacheGroupSpec(
            [f"layer {number}"],
            interface.FullAttentionSpec(**sizes)
            if group.window is None
            else interface.SlidingWindowSpec(**sizes, sliding_window=group.window),
        )
        for number, group in enumerate(groups)
    ]
    return interface.KVCacheConfig(PAGES[groups] + 1, [], named)


def _config(pages: int, *, lag: int, drafts: int, policy: str) -> Any:
    config = import_module(_CONFIG)
    cache = config.CacheConfig(block_size=SIZE, enable_prefix_caching=True)
    cache.num_gpu_blocks = pages + 1
    whole = config.VllmConfig(
        cache_config=cache,
        scheduler_config=config.SchedulerConfig(
            max_num_seqs=SLOTS,
            max_num_batched_tokens=TOKENS,
            max_model_len=MAX_LEN,
            is_encoder_decoder=False,
            enable_chunked_prefill=True,
            async_scheduling=bool(lag),
            policy=policy,
            long_prefill_token_threshold=CHUNK,
        ),
        device_config=config.DeviceConfig(device="cpu"),
    )
    stands_in = SimpleNamespace(
        max_model_len=MAX_LEN,
        is_encoder_decoder=False,
        uses_mrope=False,
        uses_xdrope=False,
        runner_type="generate",
        is_diffusion=False,
        supports_multimodal_inputs=False,
        return_sampling_mask=False,
        multimodal_config=None,
        is_multimodal_model=False,
        enable_return_routed_experts=False,
    )
    object.__setattr__(whole, "model_config", stands_in)
    if drafts:
        object.__setattr__(whole, "speculative_config", _speculation(drafts, layers=bool(lag)))
    return whole


def _speculation(drafts: int, *, layers: bool) -> Any:
    """What the scheduler asks of a proposer of drafts. layers: whether it has layers of its own."""
    return SimpleNamespace(
        num_speculative_tokens=drafts,
        num_speculative_tokens_per_batch_size=None,
        max_num_new_slots_for_drafting=0,
        use_eagle=lambda: layers,
        use_eagle_block_drop=lambda: layers,
        uses_draft_model=lambda: False,
        use_dflash=lambda: False,
        use_dspark=lambda: False,
        use_multi_module_mtp=lambda: False,
    )
