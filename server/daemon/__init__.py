"""What surrounds the HTTP surface while the daemon runs: socket, signals, uvicorn, progress."""
