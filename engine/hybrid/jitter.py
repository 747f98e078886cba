"""How far times stray from their mean."""

from __future__ import annotations

_SMOOTHING = 0.02


class Jitter:
    """Of times that are predicted one by one: what strays is the ratio."""

    def __init__(self) -> None:
        self._ratio: float | None = None
        self.seconds = 0.0
        """Mean deviation of the last few dozen."""

    def observe(self, measured: float, predicted: float) -> None:
        """Seconds of one; nothing predicted: nothing learnt."""
        if predicted <= 0:
            return
        ratio = measured / predicted
        if self._ratio is None:
            self._ratio = ratio
        deviation = abs(ratio - self._ratio) * predicted
        self._ratio += _SMOOTHING * (ratio - self._ratio)
        self.seconds += _SMOOTHING * (deviation - self.seconds)
