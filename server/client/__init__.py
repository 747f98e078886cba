"""Tandem's own clients: ``tandem chat`` and ``tandem bench``."""
