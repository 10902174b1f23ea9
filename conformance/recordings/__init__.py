"""Recordings: what some engine did and showed, line by line, and whether that was legal."""
