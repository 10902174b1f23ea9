"""Serialisation: plain data, JSON Lines, atomic writes, history files, and the JSON Schemas."""
