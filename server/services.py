"""Everything the HTTP surface works with, made by the lifecycle and never changed afterwards."""

from __future__ import annotations

import secrets
import time
from collections.abc import Callable
from dataclasses import dataclass, field

from configs.settings import Settings
from server.engine_client.protocol import EngineClient
from server.generation.live import LiveGenerations
from server.http.keys import KeyRing
from server.http.worker import Worker
from server.metrics.engine_metrics import LiveRequests
from server.metrics.registry import Metrics
from server.text.sampling_defaults import SamplingDefaults
from server.text.template_process import Renderer
from server.text.tokenizer import Tokenizer


def _random_seed() -> int:
    return secrets.randbits(63)


@dataclass(frozen=True, slots=True, kw_only=True)
class Services:
    """What ``create_app`` needs."""

    settings: Settings
    model_name: str
    """The name clients use."""
    engine: EngineClient
    tokenizer: Tokenizer
    chat_template: Renderer
    sampling_defaults: SamplingDefaults
    metrics: Metrics
    """Its ``observe_iteration`` is to be told of the engine's iterations."""
    engine_restarts: Callable[[], int]
    """Times the engine process was started again."""
    version: str
    """Of this program."""
    worker: Worker = field(default_factory=Worker)
    """Decodes long bodies, encodes text."""
    keys: KeyRing = field(default_factory=KeyRing)
    """That clients may come with."""
    live: LiveRequests = field(default_factory=LiveRequests)
    generations: LiveGenerations = field(default_factory=LiveGenerations)
    """What is being served now."""
    draw_seed: Callable[[], int] = _random_seed
    """For requests that give none."""
    clock: Callable[[], float] = time.monotonic
    now: Callable[[], float] = time.time
    """Unix time."""
