"""An engine in a process of its own: the client, the server and the wire protocol."""
