"""The float64 oracle of attention, and the error bounds of a kernel."""
