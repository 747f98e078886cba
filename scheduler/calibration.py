"""Corrects a cost model by what was measured: a bounded, smoothed factor for each of its tables."""

from __future__ import annotations

import math
from collections import defaultdict, deque
from collections.abc import Mapping

from scheduler.cost_model import CostModel
from scheduler.work import Stage

_SMOOTHING = 0.1
"""Of what an iteration says differently, how much is believed at once."""
_LARGEST_STEP = math.log(2)
"""More than this, in an iteration, is an accident. Natural logarithm, as those below."""
_LARGEST_CORRECTION = math.log(20)
_WORTH_APPLYING = math.log(1.02)
_WINDOW = 64
"""Iterations that medians are taken of."""


class Calibration:
    """Learns from one iteration after another."""

    def __init__(self) -> None:
        self._corrections: dict[Stage, float] = {}
        """Natural logarithms of factors, by the stage whose table it is."""
        self._errors: deque[float] = deque(maxlen=_WINDOW)
        self._lead: float | None = None
        self._applied: CorrectedCosts | None = None

    def observe_stages(self, predicted: Mapping[Stage, float], measured: Mapping[Stage, float]) -> None:
        """Learn from an iteration's seconds by stage: the model's, uncorrected, and the clock's.

        A stage for which either is 0 teaches nothing.
        """
        for stage, ratio in _ratios(predicted, measured).items():
            before = self._corrections.get(stage, 0.0)
            step = _clipped(math.log(ratio) - before, _LARGEST_STEP)
            self._corrections[stage] = _clipped(before + _SMOOTHING * step, _LARGEST_CORRECTION)

    def observe_iteration(self, predicted: float, measured: float) -> None:
        """Note how long an iteration was to take and took, in seconds. Nothing predicted: nothing noted."""
        if predicted > 0 and measured > 0:
            self._errors.append(abs(predicted - measured) / measured)

    def observe_lead(self, seconds: float) -> None:
        """Note how long before a unit its decision is made."""
        self._lead = seconds if self._lead is None else self._lead + _SMOOTHING * (seconds - self._lead)

    @property
    def factors(self) -> Mapping[Stage, float]:
        """What each stage's predicted time is to be multiplied with; 1 for those that aren't here."""
        return {stage: math.exp(value) for stage, value in self._corrections.items()}

    @property
    def error(self) -> float | None:
        """Median relative error of the last iterations' predicted times; None before the first."""
        return _median(self._errors) if self._errors else None

    def corrected(self, costs: CostModel) -> CostModel:
        """``costs``, corrected. The same object as long as nothing has changed by much."""
        launch = self._lead if self._lead is not None else costs.launch
        if self._applied is None or not self._applied.is_about(costs, self.factors, launch):
            self._applied = CorrectedCosts(costs, self.factors, launch)
        return self._applied


class CorrectedCosts(CostModel):
    """A cost model's times multiplied with factors, and another lead of decisions."""

    def __init__(self, costs: CostModel, factors: Mapping[Stage, float], launch: float) -> None:
        """``factors`` by stage, where not 1; what ``DENSE`` has is that of ``ENTRY`` and ``EXIT`` too."""
        self._costs = costs
        self._factors = dict(factors)
        self.layers = costs.layers
        self.page_bytes = costs.page_bytes
        self.row_bytes_down = costs.row_bytes_down
        self.row_bytes_up = costs.row_bytes_up
        self.launch = launch
        self.overhead = costs.overhead
        self._dense = factors.get(Stage.DENSE, 1.0)
        self._head = factors.get(Stage.HEAD, 1.0)
        self._device_decode = factors.get(Stage.DEVICE_DECODE, 1.0)
        self._device_prefill = factors.get(Stage.DEVICE_PREFILL, 1.0)
        self._host_prefill = factors.get(Stage.HOST_PREFILL, 1.0)
        self._host_attention = factors.get(Stage.HOST_ATTENTION, 1.0)
        self._download = factors.get(Stage.DOWNLOAD, 1.0)
        self._upload = factors.get(Stage.UPLOAD, 1.0)

    def is_about(self, costs: CostModel, factors: Mapping[Stage, float], launch: float) -> bool:
        """Whether correcting ``costs`` like that would give nearly this."""
        pairs = [(self._factors.get(stage, 1.0), factor) for stage, factor in factors.items()]
        return self._costs is costs and all(
            _alike(one, other) for one, other in [*pairs, (self.launch, launch)]
        )

    def dense(self, rows: int) -> float:
        """See ``CostModel``."""
        return self._dense * self._costs.dense(rows)

    def entry(self, rows: int) -> float:
        """See ``CostModel``."""
        return self._dense * self._costs.entry(rows)

    def exit(self, rows: int) -> float:
        """See ``CostModel``."""
        return self._dense * self._costs.exit(rows)

    def head(self, rows: int) -> float:
        """See ``CostModel``."""
        return self._head * self._costs.head(rows)

    def device_decode(self, rows: int, tokens: int) -> float:
        """See ``CostModel``."""
        return self._device_decode * self._costs.device_decode(rows, tokens)

    def device_prefill(self, rows: int, context: int) -> float:
        """See ``CostModel``."""
        return self._device_prefill * self._costs.device_prefill(rows, context)

    def host_prefill(self, rows: int, context: int) -> float:
        """See ``CostModel``."""
        return self._host_prefill * self._costs.host_prefill(rows, context)

    def host_attention(self, rows: int, tokens: int) -> float:
        """See ``CostModel``."""
        return self._host_attention * self._costs.host_attention(rows, tokens)

    def download(self, size: int) -> float:
        """See ``CostModel``."""
        return self._download * self._costs.download(size)

    def upload(self, size: int) -> float:
        """See ``CostModel``."""
        return self._upload * self._costs.upload(size)


def _ratios(predicted: Mapping[Stage, float], measured: Mapping[Stage, float]) -> dict[Stage, float]:
    """Measured over predicted, by the stage whose table it is."""
    sums: dict[Stage, list[float]] = defaultdict(lambda: [0.0, 0.0])
    for stage, expected in predicted.items():
        found = measured.get(stage, 0.0)
        if expected > 0 and found > 0:
            table = Stage.DENSE if stage in (Stage.ENTRY, Stage.EXIT) else stage
            sums[table][0] += expected
            sums[table][1] += found
    return {stage: found / expected for stage, (expected, found) in sums.items()}


def _clipped(value: float, largest: float) -> float:
    return min(max(value, -largest), largest)


def _median(values: deque[float]) -> float:
    return sorted(values)[len(values) // 2]


def _alike(one: float, other: float) -> bool:
    if one <= 0 or other <= 0:
        return one == other
    return abs(math.log(one / other)) <= _WORTH_APPLYING
