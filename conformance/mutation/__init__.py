"""Mutation testing: of the engine by refinement, and of legal histories by their judges."""
