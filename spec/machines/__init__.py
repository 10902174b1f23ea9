"""The rungs of the ladder, one module each, and their actions; `spec.ladder` has their order."""
