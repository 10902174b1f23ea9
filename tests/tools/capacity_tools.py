"""Tools for tests of capacity policies: steps with every check, and all steps of a machine."""

from collections import deque
from collections.abc import Callable, Iterator

from spec import clauses, view
from spec.machines.actions import Action
from spec.rung import Machine
from spec.state import State
from spec.vocabulary import Reason


def go(machine: Machine, state: State, *actions: Action) -> State:
    """Take actions; every edge and every clause is checked at each step."""
    for action in actions:
        after = machine.climb(state, action)
        seen = view.of(machine, after)
        wrong = list(clauses.violations(seen))
        wrong += clauses.step_violations(view.of(machine, state), seen)
        assert not wrong, (action, wrong)
        state = after
    return state


def rows(state: State) -> list[tuple[int, ...] | None]:
    """The row of each slot, None where it is unused."""
    return [None if found is None else found.row for found in state.sequences]


def reasons(machine: Machine, state: State, action: Action) -> set[Reason]:
    """Why an action is refused."""
    return {refusal.reason for refusal in machine.refusals(state, action)}


def every_step(
    machine: Machine, new: State, moves: Callable[[State], Iterator[Action]]
) -> tuple[int, int]:
    """Climb every move from every reachable state. The numbers of states and of steps done."""
    waiting, seen, done = deque([new]), {new}, 0
    while waiting:
        state = waiting.popleft()
        for action in moves(state):
            if machine.refusals(state, action):
                continue
            done, after = done + 1, go(machine, state, action)
            if after not in seen:
                seen.add(after)
                waiting.append(after)
    return len(seen), done
