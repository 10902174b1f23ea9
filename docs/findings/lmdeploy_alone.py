"""The findings in lmdeploy 0.18.0, reproduced with lmdeploy alone: no kvspec is imported.

    .venv-lmdeploy/bin/python docs/findings/lmdeploy_alone.py

Its own scheduler plans for requests with one prompt; no model is run. A pass of the model stores
for each position the number of tokens before it. Exits with 0 if both findings are reproduced, with
1 if not.
"""

import sys
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from types import ModuleType
from typing import Any


def load(*names: str) -> list[ModuleType]:
    """Modules of lmdeploy, without its CUDA kernels and its server, which packages would load."""
    root = Path(str(find_spec("lmdeploy").origin)).parent
    for name in ("", "pytorch.disagg", "pytorch.engine", "pytorch.paging", "vl"):
        parent = ModuleType(f"lmdeploy.{name}".rstrip("."))
        parent.__path__ = [str(root.joinpath(*name.split(".")))]
        sys.modules[parent.__name__] = parent
    agent = ModuleType("lmdeploy.pytorch.engine.model_agent")  # runs the model
    agent.BatchedOutputs = object
    sys.modules[agent.__name__] = agent
    return [import_module(f"lmdeploy.pytorch.{name}") for name in names]


config, messages, paging, strategy = load(
    "config", "messages", "paging.scheduler", "strategies.ar.sequence"
)
Mode = messages.UpdateTokenMode
BLOCK, AHEAD = 64, 16  # the defaults: block_size, and prefill_interval, which is taken ahead


class Engine:
    """The scheduler, and what each cell of the pool holds."""

    def __init__(self, blocks: int) -> None:
        cache = config.CacheConfig(4, BLOCK, 0, blocks, enable_prefix_caching=True)
        meta = messages.SequenceMeta(BLOCK, strategy=strategy.ARSequenceStrategy())
        self.scheduler = paging.Scheduler(config.SchedulerConfig(4, 1024), cache, meta)
        self.cells: dict[int, int] = {}

    def row(self, one: Any) -> list[int]:
        """The block table of a sequence."""
        return [int(block) for block in self.scheduler.block_manager.get_block_table(one)]

    def request(self, length: int) -> Any:
        """A prompt of the tokens 0, 1, 2, ..."""
        session = self.scheduler.add_session(len(self.scheduler.sessions))
        return session.add_sequence(range(length))

    def prefill(self) -> list[Any]:
        """Admit waiting sequences."""
        admitted = self.scheduler.schedule(is_prefill=True, prealloc_size=AHEAD).running
        self.scheduler.activate_seqs(admitted)
        return list(admitted)

    def run(self, batch: list[Any]) -> list[int]:
        """Run one pass; return the cells that were written before."""
        places = [
            (self.row(one)[position // BLOCK] * BLOCK + position % BLOCK, position)
            for one in batch
            for position in range(one.num_history_ids, one.num_valid_ids)
        ]
        again = [cell for cell, _ in places if cell in self.cells]
        self.cells.update(places)
        return again

    def draw(self, batch: list[Any], mode: Any) -> None:
        """The next token is the length of the text: the same for all."""
        for one in batch:
            one.update_token_ids([one.num_valid_ids], mode=mode)

    def wrong(self, one: Any) -> str | None:
        """What the first wrong cell of a sequence holds; None if all are right."""
        row = self.row(one)
        for position in range(one.num_history_ids):
            held = self.cells.get(row[position // BLOCK] * BLOCK + position % BLOCK)
            if held != position:
                return f"position {position} holds K and V of position {held}"
        return None


def resumed() -> bool:
    """A sequence is preempted, and admitted again behind its own blocks."""
    engine = Engine(blocks=5)
    first, second = engine.request(60), engine.request(60)
    batch = engine.prefill()
    engine.run(batch)
    engine.draw(batch, Mode.PREFILL)
    while all(engine.scheduler.schedule_running(batch, 1, AHEAD)):
        engine.run(batch)
        engine.draw(batch, Mode.DECODE)
    print(f"after {first.num_valid_ids} tokens: first {engine.row(first)}, preempted; "
          f"second {engine.row(second)}")  # fmt: skip
    engine.run([second])
    engine.draw([second], Mode.DECODE)
    again = engine.prefill()
    print(f"admitted again: first {engine.row(first)}, which has "
          f"{first.num_history_ids} tokens computed")  # fmt: skip
    engine.run(again)
    engine.draw(again, Mode.DECODE)
    engine.run([first])
    engine.draw([first], Mode.DECODE)
    for name, one in (("first", first), ("second", second)):
        print(f"{name}: {engine.wrong(one) or 'right'}")
    return engine.wrong(second) is not None


def written_again() -> bool:
    """Two equal prompts of whole blocks, in two passes: the last block is written by both."""
    engine = Engine(blocks=5)
    first = engine.request(2 * BLOCK)
    engine.run(engine.prefill())
    second = engine.request(2 * BLOCK)
    again = engine.run(engine.prefill())
    print(f"rows {engine.row(first)} and {engine.row(second)}; the second writes {len(again)} "
          f"cells of block {again[0] // BLOCK if again else '-'} again")  # fmt: skip
    return bool(again) and engine.row(first)[1] == again[0] // BLOCK


if __name__ == "__main__":
    sys.exit(0 if all([resumed(), written_again()]) else 1)
