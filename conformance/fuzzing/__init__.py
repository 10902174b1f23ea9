"""Stateful fuzzing: generators, the state machine, coverage, shrinking, counterexamples."""
