"""The finding in vLLM 0.32.0, reproduced with vLLM alone: no kvspec is imported, no model is run.

    .venv-vllm/bin/python docs/findings/vllm_alone.py

Its own scheduler plans, and planned tokens count as computed. Exits with 0 if the scheduler takes
more tokens of a request for computed than any pass has planned, with 1 if not.
"""

import os
import sys
from types import SimpleNamespace

os.environ.setdefault("VLLM_LOGGING_LEVEL", "ERROR")

import torch
from vllm import SamplingParams
from vllm.config import CacheConfig, DeviceConfig, SchedulerConfig, VllmConfig
from vllm.utils.hashing import sha256
from vllm.v1.core.kv_cache_utils import get_request_block_hasher, init_none_hash
from vllm.v1.core.sched.scheduler import Scheduler
from vllm.v1.kv_cache_interface import FullAttentionSpec, KVCacheConfig, KVCacheGroupSpec
from vllm.v1.outputs import ModelRunnerOutput
from vllm.v1.request import Request

BLOCK, BLOCKS, LONGEST = 16, 11, 256  # block 0 is never given out
MODEL = SimpleNamespace(
    uses_mrope=False,
    is_encoder_decoder=False,
    is_diffusion=False,
    is_hybrid=False,
    is_attention_free=False,
    is_multimodal_model=False,
    supports_multimodal_inputs=False,
    multimodal_config=None,
    enable_return_routed_experts=False,
    return_sampling_mask=False,
    max_model_len=LONGEST,
    runner_type="generate",
)
"""The part of a model's configuration that the scheduler reads; there is no model."""


def scheduler() -> Scheduler:
    """Chunked prefill, prefix caching and scheduling by priority, over ten blocks."""
    config = VllmConfig(
        cache_config=CacheConfig(block_size=BLOCK, enable_prefix_caching=True),
        scheduler_config=SchedulerConfig(
            max_num_seqs=4,
            max_num_batched_tokens=64,
            max_model_len=LONGEST,
            is_encoder_decoder=False,
            policy="priority",
            enable_chunked_prefill=True,
            long_prefill_token_threshold=32,
            async_scheduling=False,
        ),
        device_config=DeviceConfig("cpu"),
    )
    config.cache_config.num_gpu_blocks = BLOCKS
    object.__setattr__(config, "model_config", MODEL)
    layer = FullAttentionSpec(block_size=BLOCK, num_kv_heads=1, head_size=1, dtype=torch.float32)
    pool = KVCacheConfig(BLOCKS, [], [KVCacheGroupSpec(["layer"], layer)])
    grammar = SimpleNamespace(should_advance=lambda _: False, accept_tokens=lambda *_: True)
    return Scheduler(config, pool, grammar, BLOCK)


def request(name: str, prompt: range, priority: int) -> Request:
    """A prompt and one token to generate."""
    params = SamplingParams(max_tokens=1, temperature=0.0)
    hasher = get_request_block_hasher(BLOCK, sha256)
    return Request(name, list(prompt), params, None, priority=priority, block_hasher=hasher)


def main() -> int:
    """Schedule two requests until the preempted one is resumed."""
    init_none_hash(sha256)
    plans, computed, wrong = scheduler(), {"low": 0, "high": 0}, False
    plans.add_request(request("low", range(160), priority=1))
    for step in range(4):
        if step == 1:
            plans.add_request(request("high", range(1000, 1047), priority=0))
        plan = plans.schedule()
        taken = {new.req_id: new.num_computed_tokens for new in plan.scheduled_new_reqs}
        cached = plan.scheduled_cached_reqs
        taken.update(zip(cached.req_ids, cached.num_computed_tokens, strict=True))
        for name, more in plan.num_scheduled_tokens.items():
            print(f"pass {step}: {name} computes {more} tokens after {taken[name]}; "
                  f"{computed[name]} were computed")  # fmt: skip
            wrong |= taken[name] > computed[name]
            computed[name] = max(computed[name], taken[name] + more)
        names = list(plan.num_scheduled_tokens)
        known = [plans.requests[name] for name in names]
        tokens = [[7] if one.num_computed_tokens >= one.num_tokens else [] for one in known]
        order = {name: index for index, name in enumerate(names)}
        done = ModelRunnerOutput(req_ids=names, req_id_to_index=order, sampled_token_ids=tokens)
        plans.update_from_output(plan, done)
    return 0 if wrong else 1


if __name__ == "__main__":
    sys.exit(main())
