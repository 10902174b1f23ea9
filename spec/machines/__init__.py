"""The ladder: one module per rung, each with a State, its step, and its view from the rung below."""
