"""Real serving traffic: the loaders of traces, and their replay in lockstep."""
