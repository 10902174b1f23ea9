"""Adapters of other engines without the packages: refusals, drift, prefixes.

The targets `engine-...` of the Makefile run the adapters with the packages.
"""

import sys
from collections.abc import Callable
from importlib import import_module
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import numpy as np
import pytest

from conformance.engines import (
    lmdeploy,
    mini_sglang,
    parents,
    sglang_jax,
    transformers_cache,
    vllm,
)
from conformance.fuzzing.settings import make
from conformance.protocol import EngineFailed
from spec.vocabulary import CleanupMode, Geometry, InvalidInput, default_limits

GEOMETRY = Geometry(pages=8, slots=4, page_size=4, pages_per_seq=4)


FACTORIES: dict[str, Callable[[], object]] = {
    "sglang-jax": lambda: make(sglang_jax.make, GEOMETRY, CleanupMode.NONE),
    "sglang-jax, caching": lambda: make(sglang_jax.make_caching, GEOMETRY, CleanupMode.NONE),
    "transformers": lambda: make(transformers_cache.make, GEOMETRY, CleanupMode.NONE),
    "transformers sharing": lambda: make(
        transformers_cache.make_sharing, GEOMETRY, CleanupMode.NONE
    ),
    "vllm": lambda: make(vllm.make, GEOMETRY, CleanupMode.NONE),
    "vllm, caching": lambda: make(vllm.make_caching, GEOMETRY, CleanupMode.NONE),
    "lmdeploy": lambda: make(lmdeploy.make, GEOMETRY, CleanupMode.NONE),
    "mini-sglang": lambda: make(mini_sglang.make, GEOMETRY, CleanupMode.NONE),
    "lmdeploy caching": lambda: make(lmdeploy.make_caching, GEOMETRY, CleanupMode.NONE),
}


@pytest.fixture
def absent(monkeypatch: pytest.MonkeyPatch) -> None:
    """Make the packages impossible to import, installed or not."""
    for name in ("sgl_jax", "transformers", "vllm", "lmdeploy", "minisgl"):
        monkeypatch.setitem(sys.modules, name, None)


@pytest.mark.usefixtures("absent")
@pytest.mark.parametrize("name", FACTORIES)
def test_an_absent_package_is_said_to_be_absent(name: str) -> None:
    """The error names the package and the make target that installs it."""
    with pytest.raises(InvalidInput, match="make engine-") as raised:
        FACTORIES[name]()

    assert "installed" in raised.value.allowed


@pytest.fixture
def fakes(monkeypatch: pytest.MonkeyPatch) -> Callable[[str, str, Any], None]:
    """A function that puts an object at a dotted path, whose modules and classes it creates."""

    def put(module: str, name: str, found: Any) -> None:
        parts = module.split(".")
        for end in range(1, len(parts) + 1):
            path = ".".join(parts[:end])
            if path not in made:
                made[path] = ModuleType(path)
                monkeypatch.setitem(sys.modules, path, made[path])
        owner: Any = made[module]
        *outer, last = name.split(".")
        for part in outer:
            if not hasattr(owner, part):
                setattr(owner, part, type(part, (), {}))
            owner = getattr(owner, part)
        setattr(owner, last, found)

    made: dict[str, ModuleType] = {}
    return put


def with_parameters(*names: str) -> Any:
    """A function with these parameters."""
    made: dict[str, Any] = {}
    exec(f"def made({', '.join(names)}): pass", made)
    return made["made"]


@pytest.mark.parametrize(
    ("calls", "factory", "drifted"),
    [
        ("conformance.engines.sglang_calls", "sglang-jax", "ReqToTokenPool.alloc"),
        (
            "conformance.engines.transformers_cache",
            "transformers",
            "PagedAttentionCache.free_blocks",
        ),
        ("conformance.engines.vllm", "vllm", "KVCacheManager.free"),
        ("conformance.engines.lmdeploy", "lmdeploy", "DefaultBlockManager.free"),
        ("conformance.engines.mini_sglang", "mini-sglang", "CacheManager.lock"),
    ],
)
def test_a_call_that_has_drifted_is_named(
    fakes: Callable[[str, str, Any], None], calls: str, factory: str, drifted: str
) -> None:
    """The error names the one call whose parameters have changed."""
    for call, names in sorted(import_module(calls).CALLS.items()):
        module, _, name = call.partition(":")
        other = ("self", "requests") if name == drifted else names
        if not any(one.startswith(f"{call}.") for one in import_module(calls).CALLS):
            fakes(module, name, with_parameters(*other))
        else:
            fakes(module, name, type(name, (), {"__init__": with_parameters("self", *names)}))

    with pytest.raises(InvalidInput, match=f"{drifted} takes self, requests instead") as raised:
        FACTORIES[factory]()

    assert 1 == str(raised.value).count(" instead of ")


class Blocks:
    """The free list of three blocks as lmdeploy keeps it: an array and a number at its end."""

    def __init__(self) -> None:
        self._free_blocks, self._free_count = np.arange(3), 3
        self._log_mem = SimpleNamespace(phy_map=np.arange(3), ref_count=np.zeros(3, int))


class Allocator(Blocks):
    """Logical blocks, and the physical ones that they stand for."""

    def __init__(self) -> None:
        super().__init__()
        self.physical = Blocks()

    def get_phy_allocator(self, device: str) -> Blocks:
        """The blocks of the only device."""
        assert device == "gpu"
        return self.physical


@pytest.fixture
def blocks(monkeypatch: pytest.MonkeyPatch) -> tuple[lmdeploy.Adapter, Allocator]:
    """The adapter of lmdeploy over three free blocks, without lmdeploy."""
    stub = SimpleNamespace(
        manager=SimpleNamespace(
            DefaultBlockManager=lambda *_: SimpleNamespace(allocator=Allocator())
        ),
        messages=SimpleNamespace(SequenceMeta=lambda _size: None, SchedulerSession=lambda *_: None),
    )
    monkeypatch.setattr(lmdeploy, "library", lambda: stub)
    sizes = Geometry(pages=3, slots=1, page_size=4, pages_per_seq=3)
    adapter = lmdeploy.make(sizes, default_limits(sizes), CleanupMode.NONE)
    return adapter, adapter.manager.allocator


def test_free_blocks_of_lmdeploy_are_those_with_a_count_of_0(
    blocks: tuple[lmdeploy.Adapter, Allocator],
) -> None:
    """A view is made if both free lists hold exactly the blocks without an owner."""
    adapter, allocator = blocks
    allocator._log_mem.ref_count[:] = 2, 0, 0
    allocator._free_count = allocator.physical._free_count = 2

    assert (2, 0, 0) == adapter.observe().counts


@pytest.mark.parametrize("kind", ["logical", "physical"])
@pytest.mark.parametrize("bug", ["lost", "twice"])
def test_a_wrong_free_list_of_lmdeploy_fails(
    blocks: tuple[lmdeploy.Adapter, Allocator], kind: str, bug: str
) -> None:
    """A block that is lost from either free list, or twice in it, is a failure of the engine."""
    adapter, allocator = blocks
    wrong = allocator if kind == "logical" else allocator.physical
    if bug == "lost":
        wrong._free_count = 2
    else:
        wrong._free_blocks[:] = 0, 1, 1

    with pytest.raises(EngineFailed, match=f"free {kind} blocks"):
        adapter.observe()


def test_a_module_is_imported_without_its_package(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An empty parent stands for a package whose own import would fail."""
    package = tmp_path / "heavy" / "inner"
    package.mkdir(parents=True)
    for folder in (package, package.parent):
        (folder / "__init__.py").write_text("raise ImportError\n")
    (package / "part.py").write_text("found = 1\n")
    for name in ("heavy", "heavy.inner", "heavy.inner.part"):
        monkeypatch.setitem(sys.modules, name, ModuleType(name))
    del sys.modules["heavy.inner.part"]

    parents.register(package.parent, ["heavy", "heavy.inner"])

    assert 1 == import_module("heavy.inner.part").found
