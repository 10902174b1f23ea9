"""An engine in a process of its own: client, server and wire protocol."""
