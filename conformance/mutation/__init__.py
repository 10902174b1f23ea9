"""Mechanical changes of the engine, one at a time: `refine` notices, or it is explained."""
