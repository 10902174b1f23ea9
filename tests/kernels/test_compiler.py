"""Compilation for a chip that is not present: verdicts, figures, reproducers, and their limits."""

import json
import os
import subprocess
import sys
from functools import cache, partial
from itertools import product
from pathlib import Path
from types import SimpleNamespace
from typing import Any, Final

import jax
import jax.numpy as jnp
import pytest
from attrs import evolve
from jax.experimental import pallas as pl
from jax.experimental import topologies
from jax.experimental.pallas import tpu as pltpu

from conformance.kernels.compile import (
    compiling_process,
    grid,
    known_kernels,
    launch,
    reproduce,
    traced,
)
from conformance.kernels.compile.grid import Cell, Heads
from conformance.kernels.compile.job import Found, Job
from conformance.kernels.compile.launch import compile_cell, missing
from conformance.kernels.compile.outcome import NOT_ASKED, Compiled
from impl.attention.tpu import ragged_paged_attention
from impl.attention.tpu.blocks import CHIPS, need

ROOT: Final = Path(__file__).resolve().parents[2]
EIGHT_BILLION: Final = Cell(heads=Heads(32, 8, 128), page_size=128, chip="v6e")
SHARE: Final = Cell(heads=Heads(8, 1, 128), page_size=16, chip="v6e")
APPENDING: Final = evolve(SHARE, append=True)
needs_libtpu = pytest.mark.skipif(
    missing() is not None, reason=f"NOT CHECKED, no compiler for TPUs: {missing()}"
)


def test_without_libtpu_nothing_is_decided(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without libtpu the record names the package to install, and no process is started."""
    monkeypatch.setattr(launch, "find_spec", lambda name: None if name == "libtpu" else name)
    found = compile_cell(EIGHT_BILLION, "tpu")

    assert "undecided" == found.verdict
    assert "libtpu is missing. Run pip install 'kvspec[tpu]'." == found.reason


STAND_IN: Final = """\
import json, os, sys, time
job = json.loads(sys.argv[1])
def tell(**found): open(job["result"], "w").write(json.dumps({"verdict": "undecided"} | found))
"""


@pytest.mark.parametrize(
    ("does", "verdict", "cause", "reason"),
    [
        ("tell(stage='compiling'); os.abort()", "fails", "crash", "SIGABRT, compiling: no word"),
        ("tell(stage='tracing'); os.abort()", "undecided", "process", "SIGABRT, tracing"),
        ("tell(stage='compiling'); os.kill(os.getpid(), 9)", "undecided", "process", "SIGKILL"),
        ("sys.exit('no /some/where/chip')", "undecided", "process", "status 1, starting: no chip"),
        ("tell(stage='compiling'); time.sleep(60)", "undecided", "timeout", "within 2 seconds"),
        ("tell(verdict='fails', seconds=1.0, reason='why'); os.abort()", "fails", "", "why"),
        ("tell(verdict='ok', seconds=1.0)", "ok", "", ""),
    ],
)
def test_a_process_that_ends_otherwise_is_told_apart(
    does: str,
    verdict: str,
    cause: str,
    reason: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A crash of the compiler fails the cell, and any other end of the process is undecided."""
    (tmp_path / "stand_in.py").write_text(STAND_IN + does, encoding="utf-8")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    monkeypatch.setattr(launch, "PROCESS", "stand_in")
    monkeypatch.setattr(launch, "missing", lambda: None)
    found = compile_cell(SHARE, "tpu", seconds=2.0)

    assert (verdict, cause) == (found.verdict, found.cause)
    assert reason in found.reason
    if verdict == "ok":  # without a report of the compiler there are no figures
        assert found.vmem is None
        assert "memory report" in found.not_known or "0 files" in found.not_known


def asks_for_the_chip(*_arrays: Any) -> Any:
    """A kernel that asks for the device of this machine."""
    raise ValueError(f"no TPU but {jax.devices()[0].device_kind}")


def wrong(*_arrays: Any) -> Any:
    """A kernel that cannot be traced."""
    raise ValueError("no such tiling")


@pytest.mark.parametrize(
    ("kernel", "cell", "verdict", "reason"),
    [
        ("tpu", evolve(SHARE, page_size=12), "refused", "page_size: saw 12"),
        ("jax", APPENDING, "refused", "does not take keys and values"),
        (f"{__name__}:wrong", SHARE, "fails", "ValueError: no such tiling"),
        (f"{__name__}:asks_for_the_chip", SHARE, "undecided", "none ahead of time"),
        (f"{__name__}:absent", SHARE, "bad input", ""),
    ],
)
def test_what_goes_wrong_before_compiling_is_told_apart(
    kernel: str,
    cell: Cell,
    verdict: str,
    reason: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A refusal is no failure, and a kernel that asks for an absent chip is undecided."""
    anything = SimpleNamespace(devices=jax.devices())
    monkeypatch.setattr(topologies, "get_topology_desc", lambda *_, **__: anything)
    result = tmp_path / "result.json"
    job = Job(kernel=kernel, cell=cell, options={}, given=None, result=str(result))
    found = compiling_process.work(Job.from_json(job.to_json()))

    assert verdict == found["verdict"]
    assert reason in found.get("reason", "")
    assert found == json.loads(result.read_text(encoding="utf-8"))


def test_blocks_are_known_if_they_explain_what_the_kernel_asks_for() -> None:
    """Block sizes are accepted only if they explain the buffers of our kernel; jax's are given."""
    call = partial(ragged_paged_attention, chip=SHARE.chip, page_size=SHARE.page_size)
    program: Any = jax.jit(call).trace(*compiling_process.arguments(SHARE, of_rows=True))
    declared = list(traced.references(program.jaxpr))
    asked = compiling_process.scratch(declared)

    sizes = known_kernels.sizes("tpu", SHARE, {}, asked)
    assert sizes is not None
    assert sizes["head_turns"] == 1
    assert sizes["decode_cells"] >= 16
    assert known_kernels.sizes("tpu", SHARE, {}, asked[1:]) is None
    assert known_kernels.sizes("somebody:kernel", SHARE, {}, asked) is None
    given = known_kernels.arguments("jax", EIGHT_BILLION)
    expected = {"head_blocks": 1, "kv_cells": 64 * 128, "q_rows": 32}
    assert expected == known_kernels.sizes("jax", EIGHT_BILLION, given, asked)
    assert {} == known_kernels.arguments("jax", evolve(SHARE, kv="int8"))  # it refuses before
    kinds = {name: chip.kinds[0].split()[:2] for name, chip in CHIPS.items() if name != "v4"}
    assert {name: " ".join(words) for name, words in kinds.items()} == known_kernels.FAMILIES


@pytest.mark.parametrize("chip", grid.CHIPS)
def test_blocks_of_jax_are_those_of_its_own_function_on_that_chip(
    monkeypatch: pytest.MonkeyPatch, chip: str
) -> None:
    """For any sizes jax is given the blocks that its own function would look up on that device."""
    from jax.experimental.pallas.ops.tpu.ragged_paged_attention import tuned_block_sizes as tuned

    device = SimpleNamespace(device_kind=CHIPS[chip].kinds[0])
    monkeypatch.setattr(tuned, "jax", SimpleNamespace(devices=lambda: [device]))
    sizes = product((1, 31, 32, 33, 2048), (64, 128, 8192), (16, 128), grid.SHAPES[:2])

    for tokens, positions, page_size, heads in sizes:
        cell = Cell(heads=heads, page_size=page_size, chip=chip, tokens=tokens, positions=positions)
        q, kv = known_kernels._heads_of_jax(cell)
        kinds = jnp.dtype(cell.q), jnp.dtype(cell.kv)
        places = heads.dim, page_size, tokens, cell.pages_per_seq
        expected: Any = tuned.get_tuned_block_sizes(*kinds, q, kv // 2, *places)

        names = "num_kv_pages_per_block", "num_queries_per_block"
        given = known_kernels.arguments("jax", cell)
        assert dict(zip(names, expected, strict=True)) == given
        assert {
            "head_blocks": heads.q // q,
            "kv_cells": expected[0] * page_size,
            "q_rows": expected[1],
        } == known_kernels.sizes("jax", cell, given, [])


def test_a_kernel_works_on_as_many_cores_as_it_is_split_for() -> None:
    """The cores are the product of parallel axes, at most those present, and 0 without a kernel."""

    like: Any = jax.typeof(jnp.zeros((8, 128)))

    def split(*kinds: Any) -> Any:
        return pl.pallas_call(
            lambda _out: None,
            out_shape=like,
            grid=(2, 3)[: len(kinds)],
            out_specs=pl.BlockSpec(memory_space=pltpu.HBM),
            compiler_params=pltpu.CompilerParams(dimension_semantics=kinds or None),
        )()

    def found(*kinds: Any, most: int = 2) -> int:
        program = jax.make_jaxpr(jax.jit(partial(split, *kinds)))()
        return traced.cores(program, most=most)

    assert [1, 1, 2] == [found(), found("arbitrary"), found("parallel")]
    assert [2, 6, 1] == [
        found("parallel", "arbitrary", most=8),
        found(pltpu.PARALLEL, "parallel", most=8),
        found("parallel", most=1),
    ]
    assert 0 == traced.cores(jax.make_jaxpr(lambda x: x + 1)(1), most=2)
    both = jax.make_jaxpr(lambda: (split("arbitrary"), split("parallel"), split("arbitrary")))()
    assert 2 == traced.cores(both, most=2)


@pytest.mark.parametrize(
    ("temporary", "aliased", "append", "what"),
    [
        (0, 0, False, None),
        (50, 0, False, None),
        (51, 0, False, "0.05 times the bytes of the pool beside it: a copy"),
        (1003, 1000, True, "1.00 times"),
        (40, 1000, True, None),
        (40, 999, True, "in another place: 999 of 1000 bytes are aliased"),
        (40, 999, False, None),
    ],
)
def test_a_call_that_copies_the_pool_fails(
    temporary: int, aliased: int, what: str | None, *, append: bool
) -> None:
    """Up to a twentieth of the pool may be temporary, and new cells are written in place."""
    found = Found(pool=1000, temporary=temporary, aliased=aliased)
    said = compiling_process.copies(found, append=append)
    assert said is None if what is None else what in str(said)
    assert compiling_process.copies(Found(), append=append) is None  # of a kernel in our wrapper


@needs_libtpu
@pytest.mark.deep
def test_a_kernel_whose_pool_is_copied_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    """A function that brings the other shape of the pool into its own at every call fails."""
    monkeypatch.setenv("PYTHONPATH", str(Path(__file__).parents[1] / "tools"))
    cell = evolve(SHARE, heads=Heads(32, 8, 64))
    record = launch.compile_cell(cell, "kernel_toys:copies_the_pool", figures=False)
    assert ("fails", "copy") == (record.verdict, record.cause), record.reason
    assert record.copied is not None
    assert record.copied >= 1


def test_a_reproducer_is_one_file(tmp_path: Path) -> None:
    """A reproducer is valid Python that imports jax and the kernel's module, and has its sizes."""
    path = tmp_path / "cell.py"
    path.write_text(
        reproduce.source(evolve(SHARE, kv="float8_e4m3fn"), "tpu", options={"scale": 0.5})
    )
    text = path.read_text(encoding="utf-8")

    compile(text, str(path), "exec")
    assert "kernel(*arrays, scale=0.5, chip='v6e', page_size=16)" in text
    assert "(131072, 16, 256), jnp.float8_e4m3fn" in text
    assert "conformance" not in text
    new = reproduce.source(APPENDING, "tpu")
    compile(new, str(path), "exec")
    assert "from impl.attention.tpu import append_and_attend as kernel" in new
    assert "kernel(*arrays, keys=keys, values=values, chip='v6e', page_size=16)" in new
    assert "(512, 1, 128), jnp.bfloat16),  # keys" in new
    of_jax = reproduce.source(EIGHT_BILLION, "jax")
    assert "kernel(*arrays, num_kv_pages_per_block=64, num_queries_per_block=32)" in of_jax


@pytest.mark.parametrize(
    ("q", "kv", "append"),
    list(product(("bfloat16", "float32"), ("bfloat16", "float8_e4m3fn", "int8"), (True, False))),
)
def test_a_file_has_the_arguments_that_were_compiled(q: str, kv: str, *, append: bool) -> None:
    """The file asks for the very shapes and dtypes that the compiling process gives the kernel."""
    cell = evolve(SHARE, q=q, kv=kv, append=append, tokens=48, seqs=7, positions=100, pages=33)
    text = reproduce.source(cell, "tpu")
    begins, ends = text.index("arguments = ("), text.index("def call(")
    held: dict[str, Any] = {"jax": jax, "jnp": jnp}

    exec(text[begins:ends], held)

    expected = compiling_process.arguments(cell, of_rows=True)
    assert [(one.shape, one.dtype) for one in expected] == [
        (one.shape, one.dtype) for one in held["arguments"]
    ]


def alone(path: Path) -> "subprocess.CompletedProcess[str]":
    """Run a file in a process of its own."""
    return subprocess.run(
        [sys.executable, path],
        env=os.environ | launch.ENVIRONMENT | {"PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        check=False,
    )


@cache
def compiled(cell: Cell) -> Compiled:
    """The record of our kernel for a cell, cached because several tests read it."""
    return compile_cell(cell, "tpu")


OFTEN = {"v5e"}


@needs_libtpu
@pytest.mark.parametrize(
    "chip",
    [pytest.param(one, marks=() if one in OFTEN else pytest.mark.deep) for one in grid.CHIPS],
)
def test_our_kernel_compiles_for_every_chip(chip: str) -> None:
    """A small cell compiles within the planned memory, and all its figures are known."""
    found = compiled(evolve(SHARE, chip=chip))

    assert ("ok", "") == (found.verdict, found.reason)
    assert "" == found.not_known
    assert found.vmem is not None
    assert found.spilled is not None
    assert found.capacity is not None
    assert 0 < found.spilled < found.vmem < found.capacity
    assert found.vmem <= need(
        known_kernels.planned(found.cell)
    )  # the planner's bound, spills included
    assert found.smem
    assert found.mbu is not None
    assert found.mfu is not None
    assert 0.0 < found.mfu < 1.0
    assert 0.0 < found.mbu <= 1.0


@needs_libtpu
@pytest.mark.parametrize(
    ("page_size", "kv", "q", "refused"),
    [
        (1, "bfloat16", "bfloat16", "page_size"),
        pytest.param(2, "bfloat16", "float16", "", marks=pytest.mark.deep),
        pytest.param(4, "int8", "bfloat16", "", marks=pytest.mark.deep),
        pytest.param(2, "int8", "bfloat16", "page_size", marks=pytest.mark.deep),
        pytest.param(24, "bfloat16", "bfloat16", "", marks=pytest.mark.deep),
    ],
)
def test_a_page_compiles_or_is_refused(page_size: int, kv: str, q: str, refused: str) -> None:
    """What is refused by name is what the compiler does not take; the rest needs no copy."""
    found = compiled(evolve(APPENDING, page_size=page_size, kv=kv, q=q))

    assert ("refused" if refused else "ok", refused) == (found.verdict, found.cause)


@needs_libtpu
@pytest.mark.deep
def test_eight_bits_cost_what_sixteen_do() -> None:
    """Eight-bit cells cost at most a quarter more cycles, and where they are widened, they fit."""
    wide, found = compiled(SHARE), compiled(evolve(SHARE, kv="float8_e4m3fn"))
    widened = compile_cell(evolve(SHARE, kv="float8_e4m3fn", chip="v4"), "tpu")

    for one, other in ((wide.decode, found.decode), (wide.prefill, found.prefill)):
        assert one is not None
        assert other is not None
        assert (one.cells, one.tokens) == (other.cells, other.tokens)
        assert other.cycles <= 1.25 * one.cycles
    for record in (found, widened):
        assert record.vmem is not None
        assert record.vmem <= need(known_kernels.planned(record.cell))


@pytest.mark.deep
@needs_libtpu
def test_a_verdict_alone_has_no_figures_and_says_so() -> None:
    """Without figures the verdict is the same, and the record says that none were requested."""
    found = compile_cell(SHARE, "tpu", figures=False)

    assert compiled(SHARE).verdict == found.verdict == "ok"
    assert compiled(SHARE).smem == found.smem
    assert (None, None, None) == (found.vmem, found.decode, found.prefill)
    assert NOT_ASKED == found.not_known


@needs_libtpu
@pytest.mark.deep
def test_new_cells_cost_the_inner_loops_nothing() -> None:
    """With new cells as operands the inner loops take at most 1 % more cycles."""
    before, found = (compiled(cell) for cell in (SHARE, APPENDING))

    assert ("ok", "") == (found.verdict, found.not_known)
    for plain, appending in zip(
        (before.decode, before.prefill), (found.decode, found.prefill), strict=True
    ):
        assert plain is not None
        assert appending is not None
        assert (plain.cells, plain.tokens) == (appending.cells, appending.tokens)
        assert appending.cycles <= 1.01 * plain.cycles


@needs_libtpu
@pytest.mark.deep
def test_a_token_of_decoding_costs_what_it_should() -> None:
    """Decoding takes at most 2.05 static cycles for a KV token of the 8B shape on v6e."""
    found = compile_cell(EIGHT_BILLION, "tpu")

    assert found.decode is not None
    assert found.decode.per_token <= 2.05


@pytest.mark.deep
@needs_libtpu
def test_the_compiler_fails_what_has_no_room(tmp_path: Path) -> None:
    """jax's kernel with its default sizes has too little memory, and so has its reproducer."""
    cell = evolve(SHARE, page_size=128, chip="v5e")
    found = compile_cell(cell, "jax", figures=False)
    path = tmp_path / "cell.py"
    path.write_text(reproduce.source(cell, "jax", given=found.given))
    run = alone(path)

    assert ("fails", "vmem") == (found.verdict, found.cause)
    assert "MiB of vmem, limit 16.00 MiB" in found.reason
    assert 1 == run.returncode
    assert "Ran out of memory in memory space vmem" in run.stderr


@pytest.mark.deep
@needs_libtpu
def test_the_reproducer_of_a_cell_that_compiles_says_so(tmp_path: Path) -> None:
    """The reproducer runs unchanged, with only the kernel's package beside it."""
    path = tmp_path / "cell.py"
    path.write_text(reproduce.source(SHARE, "tpu"))
    run = alone(path)

    said, _, share = run.stdout.strip().rpartition(" ")
    assert (0, "compiles; temporary bytes over those of the pool:") == (run.returncode, said)
    assert 0 <= float(share) <= compiling_process.MOST_COPIED


SHARDED: Final = """\
from functools import partial
import jax
import jax.numpy as jnp
import numpy as np
from jax.experimental import pallas as pl
from jax.experimental import topologies
from jax.experimental.pallas import tpu as pltpu
from jax.sharding import Mesh, NamedSharding, PartitionSpec as P
from impl.attention.tpu import ragged_paged_attention as kernel

target = topologies.get_topology_desc("v5e:2x2", platform="tpu")
mesh = Mesh(np.array(target.devices), ("x",))
heads, all_of_it = P(None, "x", None), P()
specs = (heads, heads, *[all_of_it] * 4)  # each device has the rows of its own KV heads
sharded = jax.shard_map(
    partial(kernel, scale=0.09, chip="v5e", page_size=128),
    mesh=mesh, in_specs=specs, out_specs=heads, check_vma=False,
)
kinds = [((512, 32, 128), jnp.bfloat16), ((1024, 128 * 8, 256), jnp.bfloat16)]
kinds += [(shape, jnp.int32) for shape in ((64,), (64, 64), (65,), (1,))]
placed = [NamedSharding(mesh, spec) for spec in specs]
jitted = jax.jit(sharded, in_shardings=placed, out_shardings=placed[0])
jitted.lower(*(jax.ShapeDtypeStruct(*kind) for kind in kinds)).compile()
print("compiles")
"""


@pytest.mark.deep
@needs_libtpu
def test_our_kernel_compiles_on_four_devices(tmp_path: Path) -> None:
    """The kernel compiles with the KV heads of the 8B shape on four devices of a v5e."""
    path = tmp_path / "sharded.py"
    path.write_text(SHARDED, encoding="utf-8")
    run = alone(path)

    assert (0, "compiles") == (run.returncode, run.stdout.strip()), run.stderr


WITH_ALL: Final = """\
import sys
import jax
import jax.numpy as jnp
import numpy as np
from jax.experimental import topologies
from jax.sharding import Mesh, NamedSharding, PartitionSpec
from conformance.kernels.compile.peaks import PEAKS
from impl.attention.tpu import append_and_attend

chip = sys.argv[1]
peak = PEAKS[chip]
target = topologies.get_topology_desc(peak.topology, **peak.settings)
mesh = Mesh(np.array(target.devices[:1]), ("x",))
placed = NamedSharding(mesh, PartitionSpec())
kinds = [((64, 16, 64), jnp.float16), ((4096, 64 * 2, 128), jnp.bfloat16)]
kinds += [(shape, jnp.int32) for shape in ((8,), (8, 64), (9,), (1,))]
kinds += [((64, 2, 64), jnp.bfloat16)] * 2
kinds += [((16,), jnp.float32), ((4096, 1, 2, 128), jnp.float32)]

def call(q, pool, lens, table, starts, count, keys, values, sinks, scales):
    return append_and_attend(
        q, pool, lens, table, starts, count, keys=keys, values=values, sinks=sinks, scales=scales,
        scale=0.125, sliding_window=128, page_size=64, chip=chip,
    )

jitted = jax.jit(call, in_shardings=placed, out_shardings=placed, donate_argnums=1)
memory = jitted.lower(*(jax.ShapeDtypeStruct(*kind) for kind in kinds)).compile().memory_analysis()
pool, scales = 4096 * 64 * 2 * 128 * 2, 4096 * 2 * 128 * 4
print(memory.alias_size_in_bytes >= pool, memory.temp_size_in_bytes < scales)
"""


@pytest.mark.deep
@needs_libtpu
@pytest.mark.parametrize("chip", ["v4", "v6e"])
def test_sinks_scales_and_queries_in_float16_compile(chip: str, tmp_path: Path) -> None:
    """All in one program, on one core and on two: pool and scales stay in their places."""
    path = tmp_path / "with_all.py"
    path.write_text(f"import sys\nsys.argv[1:] = [{chip!r}]\n{WITH_ALL}", encoding="utf-8")
    run = alone(path)

    assert (0, "True True") == (run.returncode, run.stdout.strip()), run.stderr
