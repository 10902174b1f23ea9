"""The kit's record of each rung, all of one shape, and the registry of the records."""
