"""The finding in mini-sglang, reproduced with mini-sglang alone: no kvspec is imported.

    .venv-mini-sglang/bin/python docs/findings/mini_sglang_alone.py

The managers of its scheduler plan for three requests, with pages of one token, its default; no
model is run. A pass of the model stores for each position the text up to it. Exits with 0 if a
request reads the cells of another one, with 1 if not.
"""

import sys
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from types import ModuleType
from typing import Any

import torch


def load(*names: str) -> list[ModuleType]:
    """Modules of mini-sglang, without its CUDA kernels, server and tokenizers."""
    root = Path(next(iter(find_spec("minisgl").submodule_search_locations)))
    for name in ("kernel", "scheduler", "utils"):
        parent = sys.modules[f"minisgl.{name}"] = ModuleType(f"minisgl.{name}")
        parent.__path__ = [str(root / name)]
    for name, taken in (
        ("utils.misc", ("align_down", "div_ceil")),
        ("utils.registry", ("Registry",)),
        ("utils.logger", ("init_logger",)),
        ("kernel.radix", ("fast_compare_key",)),
    ):
        module, parent = (
            import_module(f"minisgl.{name}"),
            sys.modules[f"minisgl.{name.split('.')[0]}"],
        )
        for one in taken:
            setattr(parent, one, getattr(module, one))
    return [import_module(f"minisgl.{name}") for name in names]


core, caches, decodes, prefills, tables = load(
    "core", "scheduler.cache", "scheduler.decode", "scheduler.prefill", "scheduler.table"
)
PAGES, REQUESTS, LENGTH = 9, 4, 8


def unpinned(*sizes: Any, **options: Any) -> torch.Tensor:
    """Memory as `torch.empty` gives it; only a GPU has pinned memory."""
    options.pop("pin_memory", None)
    return EMPTY(*sizes, **options)


EMPTY, torch.empty, torch.Tensor.pin_memory = torch.empty, unpinned, torch.Tensor.contiguous


class Engine:
    """The managers of the scheduler, and what each cell of the pool holds."""

    def __init__(self) -> None:
        core.set_global_ctx(core.Context(page_size=1))
        table = torch.zeros(REQUESTS, LENGTH, dtype=torch.int32)
        self.tables = tables.TableManager(REQUESTS, table)
        self.caches = caches.CacheManager(PAGES, 1, table, "radix")
        self.decodes = decodes.DecodeManager(1)
        self.prefills = prefills.PrefillManager(self.caches, self.tables, self.decodes)
        self.cells: dict[int, list[int]] = {}
        self.live: dict[int, Any] = {}

    def row(self, uid: int) -> list[int]:
        """The computed part of the row of a request."""
        one = self.live[uid]
        return self.tables.page_table[one.table_idx, : one.cached_len].tolist()

    def wrong(self, uid: int) -> str | None:
        """The first cell of a request with another text; None if there is none."""
        text = self.live[uid].input_ids.tolist()
        for position, cell in enumerate(self.row(uid)):
            if self.cells[cell] != text[: position + 1]:
                return f"position {position} reads K and V of the text {self.cells[cell]}"
        return None

    def add(self, uid: int, prompt: list[int], more: int) -> None:
        """A request of a prompt and so many tokens more."""
        params = core.SamplingParams(max_tokens=more, ignore_eos=True)
        self.prefills.pending_list.append(
            prefills.PendingReq(uid, torch.tensor(prompt, dtype=torch.int32), params)
        )

    def step(self) -> None:
        """One pass, with what the scheduler does before and after it; the next token is 9."""
        batch = self.prefills.schedule_next_batch(64) or self.decodes.schedule_next_batch()
        self.caches.allocate_paged(batch.reqs)
        for one in batch.reqs:
            self.live[one.uid] = one
            text, row = one.input_ids.tolist(), self.tables.page_table[one.table_idx].tolist()
            for position in range(one.cached_len, one.device_len):
                self.cells[row[position]] = text[: position + 1]
            one.complete_one()
        self.decodes.filter_reqs(batch.reqs)
        with self.caches.lazy_free_region():
            for one in batch.reqs:
                one.append_host(torch.tensor([9], dtype=torch.int32))
                if not one.can_decode:
                    self.tables.free(one.table_idx)
                    self.caches.cache_req(one, finished=True)
                elif batch.is_prefill:
                    self.caches.cache_req(one, finished=False)


def main() -> int:
    """Two prompts that begin alike, in one pass; then a third request."""
    engine = Engine()
    engine.add(1, [1, 2, 3], 1)
    engine.add(2, [1, 2, 4], 2)
    engine.step()
    free = engine.caches.free_slots.tolist()
    print(f"request 1 has ended; request 2 has the pages {engine.row(2)}; free are {free}")
    engine.add(3, [5, 6, 7, 8], 1)
    engine.step()
    print(f"request 3 has the pages {engine.row(3)}")
    for uid in (2, 3):
        print(f"request {uid}: {engine.wrong(uid) or 'right'}")
    return 0 if engine.wrong(2) and not engine.wrong(3) else 1


if __name__ == "__main__":
    sys.exit(main())
