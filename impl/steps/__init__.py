"""The steps of the engine: pure functions of a state, one module per subject.

Those that `impl.entries` lists take (setup, weights, state, ...) and return (state, status,
result). Ids may be out of range: the steps check them, on the device.
"""
