"""The ladder: one module per rung, with a State, its step, and its view from the rung below."""
