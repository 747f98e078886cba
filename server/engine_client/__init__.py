"""The server's end of the engine: its process, its socket, and what happens when it dies."""
