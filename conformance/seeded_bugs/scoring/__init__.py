"""What the kit catches: each method is tried on each seeded bug."""
