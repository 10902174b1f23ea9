"""The steps of the engine: pure functions of a state, by what they concern.

Those that `impl.entries` lists take (setup, weights, state, ...) and return (state, status,
result): ids that could be out of range arrive as they are, and are judged here, on the device.
"""
