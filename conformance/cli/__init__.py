"""The command `kvspec`: `main` dispatches, `contract` defines what every command has in common."""
