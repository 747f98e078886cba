"""One generation request, from messages to the pieces of its answer."""
