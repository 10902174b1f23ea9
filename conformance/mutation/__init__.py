"""Mutation testing of the engine: `refine` notices each mutant, or it is explained."""
