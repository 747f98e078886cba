"""Times of what is not attention: a layer's dense work, its part before the attention, and the head.

Each time is that of another layer, so that no weights are found in a cache that would not be there in an
iteration, which goes through all layers too.
"""

from __future__ import annotations

import itertools

import torch
from torch import Tensor

from engine.models.decoder import DecoderModel
from engine.models.weight_facts import weight_facts
from engine.profiler.device_timer import DeviceTimer, Operation
from engine.profiler.session import Point, Visit
from scheduler.work import Stage, Work

_CACHE_BYTES = 2**29
"""More than processors keep: weights that are read before the head's, which are then in no cache."""


class DenseWork:
    """Makes points of one model on one device."""

    def __init__(self, model: DecoderModel, timer: DeviceTimer) -> None:
        self._model = model
        self._timer = timer
        self._layers = itertools.cycle(range(len(model.layers)))
        layer_bytes = weight_facts(model.parts).nbytes // len(model.layers) + 1
        self._before_head = min(len(model.layers), _CACHE_BYTES // layer_bytes + 1)

    def dense(self, rows: int) -> Point:
        """From a layer's attention to the next one's."""

        def prepare() -> Visit:
            between = self._between_attentions(rows)
            return lambda: self._seconds(between, Work(Stage.DENSE, rows=rows))

        return prepare

    def entry(self, rows: int) -> Point:
        """Embedding, and a layer up to its attention."""
        model = self._model

        def prepare() -> Visit:
            token_ids = torch.randint(model.config.vocab_size, (rows,))
            positions = torch.arange(rows)

            def enter() -> None:
                layer = model.layers[next(self._layers)]
                layer.pre_attention(model.embed(token_ids), model.rotations(positions))

            return lambda: self._seconds(enter, Work(Stage.ENTRY, rows=rows))

        return prepare

    def head(self, rows: int) -> Point:
        """Last norm and vocabulary projection, after layers."""

        def prepare() -> Visit:
            hidden, between = self._random(rows, self._model.config.hidden_size), self._between_attentions(1)

            def layers() -> None:
                for _ in range(self._before_head):
                    between()

            def once() -> float:
                self._timer.run(self._timer.device.compute, layers)
                return self._seconds(lambda: self._model.logits(hidden), Work(Stage.HEAD, rows=rows))

            return once

        return prepare

    def _between_attentions(self, rows: int) -> Operation:
        model, config = self._model, self._model.config
        attended = self._random(rows, config.num_heads * config.head_dim)
        residual = self._random(rows, config.hidden_size)
        rotations = model.rotations(torch.arange(rows))

        def advance() -> None:
            layer = next(self._layers)
            hidden = model.layers[layer].post_attention(attended, residual)
            model.layers[(layer + 1) % len(model.layers)].pre_attention(hidden, rotations)

        return advance

    def _random(self, rows: int, width: int) -> Tensor:
        return torch.randn(rows, width).to(self._model.dtype)

    def _seconds(self, operation: Operation, work: Work) -> float:
        return self._timer.seconds(self._timer.device.compute, operation, work)
