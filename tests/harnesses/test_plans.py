"""The harness of planned steps: a right scheduler holds, and each planted bug breaks its clause."""

from functools import partial

import pytest
from deep import deep_after
from planning_toy import BUGS, Toy

from conformance.harnesses import plans
from conformance.verdict import Verdict

SECONDS = 8.0


@pytest.mark.parametrize("lag", [0, 1])
def test_a_right_scheduler_holds(lag: int) -> None:
    """A run breaks no clause, and reaches all that it must reach."""
    verdict, histories = plans.check(partial(Toy, lag=lag), chosen=1, seconds=SECONDS)

    assert verdict is Verdict.HOLDS
    assert histories > 50


@pytest.mark.parametrize("bug", deep_after(20, BUGS))
def test_each_bug_of_a_scheduler_is_found(bug: str) -> None:
    """Each breaks its clause, on a history of few events."""
    found = plans.search(partial(Toy, bug=bug, lag=2), chosen=1)

    found.run(SECONDS)

    assert found.least is not None
    history, broken = found.least
    assert BUGS[bug] == broken.clause, (history, broken)
    assert len(history) <= 8, "\n".join(plans.told(history, broken))
