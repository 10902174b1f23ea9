"""The jitted engine, held to the specification on every transition of a small geometry."""
