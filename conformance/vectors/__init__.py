"""Test vectors: short recordings of the specification, which an engine in any language replays."""
