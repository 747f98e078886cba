"""The HTTP front end and the command line. Never imports torch."""

__version__ = "0.1.0"
