"""Models that decode through the paged cache."""
