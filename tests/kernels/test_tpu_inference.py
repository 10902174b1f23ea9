"""The kernel of tpu-inference: its call through the adapter, and the errors without the package."""

import importlib.util
import inspect
import itertools
import random
import sys
from pathlib import Path
from typing import Any, Final

import jax.numpy as jnp
import numpy as np
import pytest
from deep import deep_after

from conformance.cli import compare, main
from conformance.kernels import kernel_under_test, tpu_inference
from conformance.kernels.compile import cache
from impl.attention.reference import ragged_paged_attention as reference
from spec.vocabulary.errors import InvalidInput

STAND_IN: Final = '''\
"""With the interface of the kernel, by our reference: new K and V are those that it is given."""
import jax.numpy as jnp
from impl.attention.reference import ragged_paged_attention as reference

told = []

def get_tpu_version():
    return -1

def get_kv_cache_shape(pages, page_size, heads, head_dim, dtype):
    packing = 4 // jnp.dtype(dtype).itemsize
    return pages, page_size, -(-2 * heads // packing), packing, -(-head_dim // 128) * 128

def ragged_paged_attention(q, k, v, pool, lens, pages, starts, distribution, *, sm_scale, **rest):
    told.append((get_tpu_version(), distribution.tolist(), pool.shape))
    seen = pool.reshape(*pool.shape[:2], -1, pool.shape[-1])[:, :, : 2 * k.shape[1], : k.shape[2]]
    rows, size = pages.reshape(len(lens), -1), pool.shape[1]
    seen = jnp.zeros_like(seen).at[rows].set(seen[rows])
    for sequence in range(int(distribution[2])):
        for token in range(int(starts[sequence]), int(starts[sequence + 1])):
            at = int(lens[sequence]) - int(starts[sequence + 1]) + token
            new = jnp.stack([k[token], v[token]], axis=1).reshape(-1, k.shape[2])
            seen = seen.at[rows[sequence, at // size], at % size].set(new)
    return reference(q, seen, lens, rows, starts, distribution[2:], scale=sm_scale), pool
'''
installed = pytest.mark.skipif(
    importlib.util.find_spec("tpu_inference") is None,
    reason="NOT CHECKED, tpu_inference is not installed: make compare has an environment with it",
)


@pytest.fixture
def stand_in(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """A stand-in package with a kernel, whose own import fails as it does without vllm."""
    folder = tmp_path / "tpu_inference" / "kernels" / "ragged_paged_attention" / "v3"
    folder.mkdir(parents=True)
    (tmp_path / "tpu_inference" / "__init__.py").write_text("import vllm_that_is_absent\n")
    (folder / "kernel.py").write_text(STAND_IN)
    for name in [name for name in sys.modules if name.startswith("tpu_inference")]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.syspath_prepend(tmp_path)
    yield folder
    for name in [name for name in sys.modules if name.startswith("tpu_inference")]:
        sys.modules.pop(name)


def batch(dtype: str, heads: int, head_dim: int) -> tuple[Any, ...]:
    """Two sequences that decode, one with three query tokens, and an unused place."""
    random = np.random.default_rng(0)
    q = jnp.asarray(random.normal(size=(8, 2 * heads, head_dim)), jnp.float32)
    pool = jnp.asarray(random.normal(size=(9, 4, 2 * heads, head_dim)), jnp.float32)
    rows = jnp.asarray([[5, 1], [3, 0], [8, 2], [77, 77]], jnp.int32)
    lens, starts = jnp.asarray([6, 1, 7, 99]), jnp.asarray([0, 1, 2, 5, 5])
    return q, pool.astype(dtype), lens, rows, starts, jnp.asarray([3])


@pytest.mark.parametrize(
    ("dtype", "heads", "head_dim"),
    deep_after(1, [("float32", 2, 128), ("float8_e4m3fn", 1, 64)]),
)
@pytest.mark.usefixtures("stand_in")
def test_the_kernel_is_given_what_the_batch_has(dtype: str, heads: int, head_dim: int) -> None:
    """The adapter gives the kernel its layout and its order, and the answer is the reference's."""
    arrays = batch(dtype, heads, head_dim)
    found = kernel_under_test.find("tpu-inference")
    answer = found.call(*arrays, options={"scale": 0.5}, chip="v6e")
    told = sys.modules[tpu_inference.MODULE].told

    np.testing.assert_array_equal(answer, reference(*arrays, scale=0.5))
    assert 6 == told[0][0]
    assert [2, 2, 3] == told[0][1]
    assert 128 == told[0][2][-1]


@pytest.mark.usefixtures("stand_in")
def test_another_pool_gives_another_answer() -> None:
    """K and V of a new token are read from its own cell, so that a change there is seen."""
    arrays = batch("float32", 2, 128)
    right = reference(*arrays, scale=0.5)
    changed = arrays[1].at[1, 1].add(1.0)  # the last cell of the first sequence
    found = kernel_under_test.find("tpu-inference").call(
        arrays[0], changed, *arrays[2:], options={"scale": 0.5}, chip="v6e"
    )
    answer = np.asarray(found)

    assert not np.allclose(answer[0], right[0])
    np.testing.assert_array_equal(answer[1:5], right[1:5])


@pytest.mark.parametrize(
    ("chip", "dtype", "seen"), [("v4", "float32", "v4"), ("v6e", "int8", "int8")]
)
@pytest.mark.usefixtures("stand_in")
def test_what_the_kernel_does_not_take_is_refused(chip: str, dtype: str, seen: str) -> None:
    """A chip without block sizes and a pool of integers are refused with the allowed values."""
    arrays = batch("float32", 2, 128)
    pool = arrays[1].astype(dtype)
    found = kernel_under_test.find("tpu-inference")
    with pytest.raises(InvalidInput, match=f"saw .*{seen}.*allowed"):
        found.call(arrays[0], pool, *arrays[2:], options={}, chip=chip)


def test_without_the_package_it_is_refused(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Without the package the kernel is refused with a remedy, and its cells are not checked."""
    real = importlib.util.find_spec
    absent = lambda name, *rest: None if name == "tpu_inference" else real(name, *rest)  # noqa: E731
    monkeypatch.setattr(importlib.util, "find_spec", absent)
    monkeypatch.setattr(compare, "find_spec", absent)

    with pytest.raises(InvalidInput, match=r"no module tpu_inference.*make compare"):
        kernel_under_test.find("tpu-inference")
    assert 2 == main.main(["kernel", "tpu-inference"])
    assert "make compare" in capsys.readouterr().err
    assert "tpu_inference is not installed" in str(compare._absent("tpu-inference"))
    assert compare._absent("tpu") is None


def test_kept_cells_depend_on_what_made_them() -> None:
    """Kept cells depend on the bench, the adapter and our kernel, but not on reports about them."""
    files = {
        kernel: {path.name for path in cache.sources(kernel)} for kernel in kernel_under_test.KNOWN
    }

    for names in files.values():
        assert {"compiling_process.py", "loops.py", "kernel_under_test.py"} <= names
        assert not {"table.py", "cache.py", "comparison.py"} & names
    assert "tpu_inference.py" in files["tpu-inference"]
    assert "decode.py" in files["tpu"]
    assert not {"tpu_inference.py", "decode.py"} & files["jax"]
    assert len({cache.stamp(kernel) for kernel in ("tpu", "jax", "tpu-inference")}) == 3


@pytest.mark.usefixtures("stand_in")
def test_the_kernel_is_told_the_chip_of_each_call() -> None:
    """After any chip the kernel is told any other one, and nothing of the one before is left."""
    chips = tpu_inference.GENERATIONS.items()

    told = [
        tpu_inference.loaded(chip).get_tpu_version()
        for pair in itertools.product(chips, repeat=2)
        for chip, _ in pair
    ]

    assert [number for pair in itertools.product(chips, repeat=2) for _, number in pair] == told


@pytest.mark.parametrize("seed", range(15))
def test_any_batch_is_taken_apart_as_its_lengths_say(seed: int) -> None:
    """Leading single queries decode, new K and V are of their cells, and the rest is not read."""
    draws = random.Random(seed)
    rows, page_size, entries, pages = 4, 4, 3, 12
    count, most = draws.randrange(rows + 1), 12
    queries = [draws.choice((1, 1, 0, 3)) for _ in range(count)]
    lens = [asked + draws.randrange(most - asked + 1) for asked in queries]
    starts = [0, *itertools.accumulate(queries)]
    beyond = [starts[-1] + draws.choice((0, 1, 1, 2)) * at for at in range(1, rows - count + 1)]
    table = np.array(draws.sample(range(pages), pages)).reshape(rows, entries)
    lengths = np.array([*lens, *[99] * (rows - count)])
    pool = np.arange(pages * page_size * 4 * 2, dtype=np.float32).reshape(pages, page_size, 4, 2)

    decoding = tpu_inference._decoding(jnp.array([*starts, *beyond]), jnp.array([count]))
    k, v = tpu_inference._new(
        *map(jnp.asarray, (pool, lengths, table, np.array([*starts, *beyond]))), tokens=14
    )

    assert [len(list(itertools.takewhile(lambda asked: asked == 1, queries)))] == decoding.tolist()
    for row, asked in enumerate(queries):
        for index in range(asked):
            page, offset = divmod(lens[row] - asked + index, page_size)
            cell = pool[table[row, page], offset]
            np.testing.assert_array_equal(cell[0::2], k[starts[row] + index])
            np.testing.assert_array_equal(cell[1::2], v[starts[row] + index])


@installed
def test_the_kernel_is_as_the_adapter_has_it() -> None:
    """The kernel's module is found without importing its package, and has the expected names."""
    kernel = tpu_inference.loaded("v6e")
    takes = inspect.signature(kernel.ragged_paged_attention).parameters
    shape = kernel.get_kv_cache_shape(9, 16, 1, 64, jnp.float8_e4m3fn)

    assert 6 == kernel.get_tpu_version()
    assert (9, 16, 1, 4, 128) == shape
    assert {"sm_scale", "sliding_window", "soft_cap", "k_scale", "v_scale"} <= takes.keys()
    assert "vllm" not in sys.modules
