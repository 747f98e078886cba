"""What must be set before any test imports torch."""

from __future__ import annotations

import os

from engine.thread_environment import THREAD_ENVIRONMENT

for name, value in THREAD_ENVIRONMENT.items():
    os.environ.setdefault(name, value)
