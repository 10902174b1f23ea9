"""The modules that are mutated, by group, and the sample of a group.

A group has one denominator in the report, and its methods.
"""

import hashlib
import importlib
from collections.abc import Mapping
from functools import cache
from typing import Final

from attrs import field, frozen

from conformance.mutation.operators import Mutant
from conformance.mutation.rewriting import Rewritten, rewrite

SEED: Final = 20
"""The seed of all samples. It was fixed before any mutant was judged."""


@frozen
class Group:
    """Modules that are reported together. what: in words. methods: what may kill their mutants.

    tests: for the beginning of a module's name the files and folders of tests that TESTS or
    UNIT_TESTS runs. size: of the sample. kinds: the operators; by default all. checked: modules of
    other groups of which this one has the checks of arguments alone, which are Python alone.
    """

    what: str
    modules: tuple[str, ...]
    methods: tuple[str, ...]
    tests: Mapping[str, tuple[str, ...]] = field(factory=dict)
    size: int = 300
    kinds: tuple[str, ...] = ()
    checked: tuple[str, ...] = ()


TESTS: Final = "tests"
"""The method of groups that no engine runs."""
REFINE: Final = "refine"
"""The method that tries the steps of the engine in every state of small sizes."""
TRACE: Final = "trace"
"""Not a method: a short run without a mutant, which says which mutants raise when traced."""
UNIT_TESTS: Final = "unit tests"
"""A method that stands apart: the tests of our engine, which help nobody with another one."""
OF_ENGINE: Final = tuple(
    f"tests/impl/test_{name}.py"
    for name in (
        "state",
        "sampler",
        "paged_cache",
        "attention",
        "attention_steps",
        "llama",
        "engine",
        "engine_refusals",
        "host",
        "ahead",
        "state_lost",
        "engine_llama",
    )
)
"""The unit tests of the compiled code, without those of the kernel for TPUs, and of the checked
shapes, which a rewritten module does not have.
"""
OF_KERNEL: Final = ("tests/impl/test_tpu_kernel.py", "tests/kernels/test_appending.py")
"""The unit tests of the kernel for TPUs."""
OF_DRIVER: Final = (
    "tests/impl/test_engine_arguments.py",
    "tests/impl/test_interrupts.py",
    *OF_ENGINE,
    *OF_KERNEL,
)
"""The unit tests of the driver, and of the checks of arguments in every module of the engine."""
JITTED: Final = "impl.attention."
"""The modules of which functions are jitted by themselves, or write to buffers of a kernel. No
mutant of them can be chosen by an argument of the entry points."""
METADATA: Final = (
    "impl.plan",
    "impl.commit",
    "impl.status",
    "impl.state",
    "impl.state.flights",
    "impl.state.index",
    "impl.state.outputs",
    "impl.state.packing",
    "impl.state.pages",
    "impl.state.queue",
    "impl.state.slots",
    "impl.steps.ahead",
    "impl.steps.allocation",
    "impl.steps.answer",
    "impl.steps.decode",
    "impl.steps.flights",
    "impl.steps.outputs",
    "impl.steps.preemption",
    "impl.steps.prefill",
    "impl.steps.prefix",
    "impl.steps.queueing",
    "impl.steps.reset",
    "impl.steps.rollback",
    "impl.steps.round",
    "impl.steps.sequences",
    "impl.steps.statistics",
    "impl.steps.window",
    "impl.steps.writing",
)
CONTENTS: Final = (
    "impl.cache.paged",
    "impl.models.integer",
    "impl.models.llama",
    "impl.models.sampler",
    "impl.attention.appending",
    "impl.attention.places",
    "impl.attention.reference",
)
KERNEL: Final = (
    "impl.cache.rows",
    "impl.cache.scales",
    "impl.attention.tpu",
    "impl.attention.tpu.arithmetic",
    "impl.attention.tpu.blocks",
    "impl.attention.tpu.buffers",
    "impl.attention.tpu.cells",
    "impl.attention.tpu.copies",
    "impl.attention.tpu.decode",
    "impl.attention.tpu.flow",
    "impl.attention.tpu.fresh",
    "impl.attention.tpu.prefill",
    "impl.attention.tpu.shape",
    "impl.attention.tpu.writing",
)
GROUPS: Final[Mapping[str, Group]] = {
    "metadata": Group(
        "tables, queue, outputs and steps of the engine, compiled",
        METADATA,
        ("fuzz", "refine", "vectors", "replay", UNIT_TESTS),
        {"impl.": OF_ENGINE},
    ),
    "contents": Group(
        "cache, models and the reference attention, compiled",
        CONTENTS,
        ("fuzz", "refine", "vectors", "replay", "served", "kernel reference", UNIT_TESTS),
        {"impl.": OF_ENGINE},
        size=93,
    ),
    "kernel": Group(
        "the kernel for TPUs, interpreted",
        KERNEL,
        ("kernel tpu", "gates", UNIT_TESTS),
        {"impl.": OF_KERNEL},
        size=207,
    ),
    "driver": Group(
        "the host, the driver and the checks of arguments, which are Python alone",
        (
            "impl.ahead",
            "impl.arguments",
            "impl.attention.interface",
            "impl.engine",
            "impl.events",
            "impl.host",
            "impl.interrupts",
            "impl.setup",
            "impl.together",
        ),
        ("fuzz", "vectors", "replay", UNIT_TESTS),
        {"impl.": OF_DRIVER},
        size=100,
        checked=(*CONTENTS, *KERNEL),
    ),
    "guards": Group(
        "every guard of the engine and of its driver, left out",
        (*METADATA, "impl.ahead", "impl.arguments", "impl.host"),
        ("fuzz",),
        kinds=("guard",),
    ),
    "specification": Group(
        "the specification",
        (
            "spec.attention",
            "spec.cells",
            "spec.clauses",
            "spec.events",
            "spec.fields",
            "spec.index",
            "spec.ladder",
            "spec.machines.actions",
            "spec.machines.admission",
            "spec.machines.cache",
            "spec.machines.chunks",
            "spec.machines.flights",
            "spec.machines.lifecycle",
            "spec.machines.naive",
            "spec.machines.pages",
            "spec.machines.preemption",
            "spec.machines.prefix",
            "spec.machines.rollback",
            "spec.machines.scheduling",
            "spec.machines.sharing",
            "spec.machines.window",
            "spec.model",
            "spec.pool",
            "spec.rung",
            "spec.scheduler",
            "spec.state",
            "spec.stats",
            "spec.table",
            "spec.view",
            "spec.vocabulary.capacity",
            "spec.vocabulary.errors",
            "spec.vocabulary.geometry",
            "spec.vocabulary.request",
            "spec.vocabulary.rules",
        ),
        (TESTS,),
        {"spec.": ("tests/spec", "tests/numerics/test_oracle.py")},
    ),
    "kit": Group(
        "comparer, judges, coverage, ledger, shrinking and oracle of the kit",
        (
            "conformance.lockstep.called",
            "conformance.lockstep.comparer",
            "conformance.lockstep.differential",
            "conformance.lockstep.granted",
            "conformance.lockstep.lockstep",
            "conformance.lockstep.sending",
            "conformance.fuzzing.folding",
            "conformance.fuzzing.shrinking",
            "conformance.numerics.oracle",
            "conformance.recordings.answers",
            "conformance.recordings.by_specification",
            "conformance.recordings.fast_table",
            "conformance.recordings.judge",
            "conformance.recordings.required",
            "conformance.recordings.shrinking",
            "conformance.recordings.validate",
            "conformance.refinement.answers",
            "conformance.refinement.transition",
            "conformance.refinement.vmapped",
            "conformance.rungs.coverage",
        ),
        (TESTS,),
        {
            "conformance.lockstep.": ("tests/lockstep",),
            "conformance.fuzzing.folding": ("tests/fuzzing/test_folding.py",),
            "conformance.fuzzing.shrinking": (
                "tests/fuzzing/test_shrinking.py",
                "tests/fuzzing/test_counterexamples.py",
            ),
            "conformance.numerics.": ("tests/numerics",),
            "conformance.recordings.": ("tests/recordings",),
            "conformance.refinement.": ("tests/refinement",),
            "conformance.rungs.": ("tests/rungs", "tests/fuzzing/test_coverage.py"),
        },
    ),
}
"""Every module of the engine and of the specification that has mutants is in one group, beside the
guards.

The compiled code beside the metadata has 300 mutants in its samples, too: contents and kernel in
proportion to all of their mutants.
"""


@cache
def first_numbers(group: str) -> Mapping[str, int]:
    """For each module of a group, the number of its first mutant."""
    numbers, after = {}, 0
    for module in (*GROUPS[group].modules, *GROUPS[group].checked):
        importlib.import_module(module)
        numbers[module], after = after, after + len(rewrite(module).mutants)
    return numbers


@cache
def mutants(group: str) -> tuple[Mutant, ...]:
    """All mutants of a group; the number of each is its place."""
    return tuple(
        mutant
        for module, first in first_numbers(group).items()
        for mutant in rewrite(module, first=first).mutants
    )


def own_tests(group: str, number: int) -> tuple[str, ...]:
    """The files and folders of tests that must kill a mutant: those of its own part."""
    module, tests = mutants(group)[number].module, GROUPS[group].tests
    return next(paths for begins, paths in tests.items() if module.startswith(begins))


def eligible(group: str) -> tuple[Mutant, ...]:
    """The mutants of a group that may be in its sample."""
    kinds = GROUPS[group].kinds
    found = (one for one in mutants(group) if not kinds or one.kind in kinds)
    return tuple(one for one in found if _belongs(one, group))


def _belongs(mutant: Mutant, group: str) -> bool:
    """Whether a mutant is not in a part of its module that another group has."""
    if mutant.module in GROUPS[group].checked:
        return mutant.checks
    return not mutant.checks or all(mutant.module not in one.checked for one in GROUPS.values())


def rewritten(group: str, chosen: frozenset[int]) -> list[Rewritten]:
    """The modules of a group with these mutants in their code."""
    return [
        rewrite(module, first=first, only=chosen) for module, first in first_numbers(group).items()
    ]


def sample(group: str, size: int) -> tuple[int, ...]:
    """Mutants of a group, each module in proportion to its number of mutants.

    A smaller sample is the beginning of a larger one, as nearly as whole numbers allow it.
    """
    by_module = dict[str, list[Mutant]]()
    for mutant in eligible(group):
        by_module.setdefault(mutant.module, []).append(mutant)
    keyed = []
    for module, held in by_module.items():
        drawn = sorted(held, key=lambda one: _order(one.id))
        keyed += [((at + 0.5) / len(held), module, one.number) for at, one in enumerate(drawn)]
    return tuple(number for _, _, number in sorted(keyed)[:size])


def _order(name: str) -> str:
    """The place of a mutant in all samples; it stays where it is when others come and go."""
    return hashlib.sha256(f"{SEED} {name}".encode()).hexdigest()
