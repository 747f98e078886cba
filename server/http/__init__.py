"""HTTP itself: bodies, errors, middleware, and clients that are slow, gone or hostile."""
