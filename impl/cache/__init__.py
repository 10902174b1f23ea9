"""Storage of K and V."""
