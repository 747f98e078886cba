"""What stands between a user and their model."""

from __future__ import annotations


class ModelError(Exception):
    """A model can't be served; the message tells the user why and names the file or tensor."""
