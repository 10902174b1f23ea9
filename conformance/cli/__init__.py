"""The command `kvspec`: `main` dispatches, `contract` is what every command keeps to."""
