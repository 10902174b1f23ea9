"""What all tests share: checked signatures, how code is compiled and kept, the order of the files.

Every test that traces the engine checks the shapes and dtypes that its signatures name. Code is
compiled without optimisation, since most of it takes longer to compile than it runs; `make deep`
sets XLA_FLAGS to nothing, so that its tests run what users run.
"""

import gc
import os
import signal
import sys
from collections.abc import Iterator, Sequence
from importlib.machinery import ModuleSpec, PathFinder
from pathlib import Path

import pytest
from jaxtyping import install_import_hook

from conformance.runtime import compiled_code, unoptimised

TRACED = (
    "impl.attention",
    "impl.cache",
    "impl.commit",
    "impl.models",
    "impl.plan",
    "impl.state",
    "impl.status",
    "impl.steps",
)
"""The modules that are traced. Outside the tests nothing is checked, and nothing is slower."""

UNTRACED = {
    "impl.attention.tpu.blocks",
    "impl.attention.tpu.buffers",
    "impl.attention.tpu.shape",
}
"""Modules among them that compute with numbers only: checking two million calls takes long."""


class Unchecked:
    """Finds the modules of UNTRACED before the import hook does."""

    @staticmethod
    def find_spec(
        name: str, path: Sequence[str] | None, _target: object = None
    ) -> ModuleSpec | None:
        """The module as it is, if it is one of them."""
        return PathFinder.find_spec(name, path) if name in UNTRACED else None


os.environ.setdefault("XLA_FLAGS", " ".join(unoptimised.flags()))
install_import_hook(TRACED, "shape_checks.checked")
sys.meta_path.insert(0, Unchecked)

SLOW = (
    "vectors/test_vectors.py",
    "numerics/test_llama_oracle.py",
    "fuzzing/test_hang_seconds.py",
    "fuzzing/test_fuzz_engine.py",
    "docs/test_docs.py",
    "lockstep/test_deviations.py",
    "hostile/test_hostile.py",
    "engines/test_ours.py",
    "refinement/test_names.py",
    "fuzzing/test_coverage.py",
    "fuzzing/test_pytest_plugin.py",
    "impl/test_tpu_kernel.py",
    "refinement/test_refinement.py",
    "impl/test_attention.py",
    "cli/test_checkpoints.py",
    "recordings/test_recording.py",
    "recordings/test_fast_table.py",
    "mutation/test_page.py",
    "impl/test_engine.py",
    "engines/test_pool_copies.py",
    "exploration/test_packed_states.py",
    "isolation/test_isolation.py",
    "lockstep/test_besides.py",
    "spec/test_machines.py",
    "mutation/test_run.py",
    "fuzzing/test_shrinking.py",
    "harnesses/test_requests_together.py",
    "impl/test_index.py",
    "files/test_schemas.py",
    "isolation/test_engine_processes.py",
    "spec/test_requests.py",
    "seeded_bugs/test_score.py",
    "exploration/test_renaming.py",
    "kernels/test_compiler.py",
    "packaging/test_architecture.py",
    "runtime/test_supervisor.py",
    "lockstep/test_differential.py",
    "kernels/test_drawn_batches.py",
    "impl/test_attention_steps.py",
    "fuzzing/test_adapter_mistakes.py",
    "refinement/test_observed.py",
    "runtime/test_compiled_code.py",
)
"""The files that take longest, roughly the longest first, compilers beside files that wait.

A wrong order costs time and nothing else.
"""

TESTS = Path(__file__).parent


@pytest.fixture(autouse=True)
def _signal_handlers_stay() -> Iterator[None]:
    """A test that listens to signals leaves them to the next one as they were."""
    numbers = (signal.SIGINT, signal.SIGTERM)
    before = [signal.getsignal(number) for number in numbers]
    yield
    for number, handler in zip(numbers, before, strict=True):
        signal.signal(number, handler)


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_auto_num_workers() -> int:
    """One more than there are cores, since some tests wait until a hang is noticed."""
    return (os.cpu_count() or 1) + 1


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Begin with the slow files, so that several workers end at about the same time."""
    ranks = {TESTS / name: rank for rank, name in enumerate(SLOW)}
    items.sort(key=lambda item: ranks.get(item.path, len(SLOW)))


def pytest_collection_finish() -> None:
    """Keep what is compiled in the folder of the user, if any of these tests uses jax.

    Imported modules stay until the end, so the garbage collector passes over them, and it comes
    seldom: tests make many small objects.
    """
    gc.freeze()
    gc.set_threshold(100_000, 50, 50)
    if "jax" in sys.modules:
        compiled_code.keep()
