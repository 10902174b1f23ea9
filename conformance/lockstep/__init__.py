"""An engine and the specification side by side: comparer, history, rendering, watchdog."""
