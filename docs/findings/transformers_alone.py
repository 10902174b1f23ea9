"""The finding in transformers 5.23.0, reproduced with transformers alone: no kvspec is imported.

    .venv-transformers/bin/python docs/findings/transformers_alone.py

A tiny random Llama on the CPU serves requests by continuous batching, with two choices each. Exits
with 0 if one token that is left of a prompt ends the generation of its request, with 1 if not.
"""

import logging
import sys

import torch
from transformers import (
    ContinuousBatchingConfig,
    GenerationConfig,
    LlamaConfig,
    LlamaForCausalLM,
)

PAGE = 4
SHAPE = LlamaConfig(
    vocab_size=32, hidden_size=16, intermediate_size=16, num_hidden_layers=1, num_attention_heads=2
)
SAMPLING = GenerationConfig(
    max_new_tokens=2, do_sample=True, num_return_sequences=2, eos_token_id=-1
)
CACHE = ContinuousBatchingConfig(
    page_size=PAGE, num_blocks=64, max_batch_tokens=64, max_memory_percent=0.5
)


def served(*prompts: list[int]) -> bool:
    """Whether two choices of every prompt are answered, each prompt sent after the one before."""
    model = LlamaForCausalLM(SHAPE).eval()
    manager = model.init_continuous_batching(
        generation_config=SAMPLING, continuous_batching_config=CACHE
    )
    manager.start()
    answered = []
    for prompt in prompts:
        manager.add_request(prompt)
        results = [manager.get_result(timeout=20) for _ in range(2)]
        answered += [one is not None and one.error is None for one in results]
    manager.stop(block=True)
    return all(answered)


def main() -> int:
    """Serve a prompt of one token, one whose other tokens are hit, and others that are answered."""
    logging.disable(logging.CRITICAL)
    torch.manual_seed(0)
    text = list(range(1, 2 * PAGE + 2))
    found = {
        "a prompt of two tokens": served(text[:2]),
        "a prompt of one token": served(text[:1]),
        f"a prompt of {len(text) + 1} tokens, twice": served([*text, 20], [*text, 20]),
        f"a prompt of {len(text)} tokens, once": served(text),
        f"a prompt of {len(text)} tokens, twice": served(text, text),
    }
    for name, answered in found.items():
        print(f"{name}, two choices: {'answered' if answered else 'failed'}")
    return 0 if list(found.values()) == [True, False, True, True, False] else 1


if __name__ == "__main__":
    sys.exit(main())
