"""Lockstep: an engine beside the specification, with comparer, rendering and watchdog."""
