"""HTTP itself: bodies, errors, headers, server-sent events."""
