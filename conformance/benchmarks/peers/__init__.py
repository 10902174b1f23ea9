"""`make peers`: the reference attention and its peers, timed in one run."""
