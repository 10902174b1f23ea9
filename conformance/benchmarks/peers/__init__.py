"""`make peers`: the reference attention beside others that do the same, timed in one run."""
