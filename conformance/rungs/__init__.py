"""What the kit knows of each rung: one record of one shape for each, and their registry."""
