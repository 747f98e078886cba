"""The HTTP front end and the command line. Never imports torch."""
