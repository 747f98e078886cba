"""Rows on their way through the layers, and the units that move them on.

A unit runs from one attention to the next, for the main batch, for waves of host rows, or for several of them
at once. These are the functions that the compute stream calls; what they leave in a ``Rows`` only they touch.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from operator import itemgetter

import torch
from torch import Tensor

from engine.models.decoder import AttentionInput, DecoderModel
from engine.models.rotary import Rotation, Rotations


class Rows:
    """Tokens that go through the layers together. What has no value before ``enter`` is set by it."""

    rotations: Rotations
    q: Tensor
    """[rows, heads, head_dim]."""
    kv: Tensor
    """[rows, 2, kv_heads, head_dim]."""
    residual: Tensor
    """[rows, hidden]."""

    def __init__(self, token_ids: Tensor, positions: Tensor) -> None:
        """Both are int64, [rows]."""
        self.token_ids = token_ids
        self.positions = positions

    def __len__(self) -> int:
        return len(self.token_ids)

    def enter(self, rotations: Rotations, made: AttentionInput) -> None:
        """Begin a token: the first layer's attention input."""
        self.rotations = rotations
        self.move_on(made)

    def move_on(self, made: AttentionInput) -> None:
        """Take the next attention's input."""
        self.q, self.kv, self.residual = made

    def keep(self, indices: Tensor) -> None:
        """Go on with some of the rows only, int64 [rows kept]."""
        self.token_ids, self.positions = self.token_ids[indices], self.positions[indices]
        self.residual = self.residual[indices]
        self.rotations = _each(self.rotations, itemgetter(indices))


Attended = tuple[Rows, Tensor]
"""Rows and what attention made of them, [rows, heads * head_dim]."""


def enter(model: DecoderModel, groups: Sequence[Rows]) -> None:
    """Embed the rows and make the first layer's attention input."""
    token_ids = _joined([rows.token_ids for rows in groups])
    rotations = model.rotations(_joined([rows.positions for rows in groups]))
    made = model.layers[0].pre_attention(model.embed(token_ids), rotations)
    for rows, piece in zip(groups, _pieces(groups), strict=True):
        rows.enter(_each(rotations, itemgetter(piece)), _part(made, piece))


def advance(model: DecoderModel, layer: int, attended: Sequence[Attended]) -> None:
    """From the attention of ``layer`` to the input of the next one's."""
    groups = [rows for rows, _output in attended]
    hidden = _after(model, layer, attended)
    made = model.layers[layer + 1].pre_attention(hidden, _joined_rotations(groups))
    for rows, piece in zip(groups, _pieces(groups), strict=True):
        rows.move_on(_part(made, piece))


def leave(model: DecoderModel, attended: Sequence[tuple[Rows, Tensor, Tensor | None]]) -> Tensor:
    """From the last layer's attention to logits, float32 [rows, vocab].

    Args:
        model: whose last layer it is.
        attended: rows, their attention output, and which of them are sampled from (int64; None for all).
    """
    outputs = [output if chosen is None else output[chosen] for _rows, output, chosen in attended]
    residuals = [
        rows.residual if chosen is None else rows.residual[chosen] for rows, _output, chosen in attended
    ]
    return model.logits(model.layers[-1].post_attention(_joined(outputs), _joined(residuals)))


def _after(model: DecoderModel, layer: int, attended: Sequence[Attended]) -> Tensor:
    outputs = _joined([output for _rows, output in attended])
    return model.layers[layer].post_attention(outputs, _joined([rows.residual for rows, _output in attended]))


def _joined(tensors: Sequence[Tensor]) -> Tensor:
    return tensors[0] if len(tensors) == 1 else torch.cat(list(tensors))


def _joined_rotations(groups: Sequence[Rows]) -> Rotations:
    if len(groups) == 1:
        return groups[0].rotations
    full = _join([rows.rotations.full for rows in groups])
    first = groups[0].rotations
    alike = first.full is first.sliding
    return Rotations(full, full if alike else _join([rows.rotations.sliding for rows in groups]))


def _join(rotations: Sequence[Rotation]) -> Rotation:
    return Rotation(
        torch.cat([each.cos for each in rotations]), torch.cat([each.signed_sin for each in rotations])
    )


def _each(rotations: Rotations, take: Callable[[Tensor], Tensor]) -> Rotations:
    full = Rotation(take(rotations.full.cos), take(rotations.full.signed_sin))
    if rotations.full is rotations.sliding:
        return Rotations(full, full)
    return Rotations(full, Rotation(take(rotations.sliding.cos), take(rotations.sliding.signed_sin)))


def _pieces(groups: Sequence[Rows]) -> list[slice]:
    pieces, first = [], 0
    for rows in groups:
        pieces.append(slice(first, first + len(rows)))
        first += len(rows)
    return pieces


def _part(made: AttentionInput, piece: slice) -> AttentionInput:
    return AttentionInput(made.q[piece], made.kv[piece], made.residual[piece])
