"""The score of the kit: each method tried on each seeded bug."""
