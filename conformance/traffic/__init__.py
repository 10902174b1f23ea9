"""Real serving traffic: loaders of traces, and their replay in lockstep."""
