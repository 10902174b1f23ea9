"""Recordings: the actions of an engine and its observed fields as JSON Lines, and their judging."""
