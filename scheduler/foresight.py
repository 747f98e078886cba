"""The planner's choice for the next iteration, made while the one before it runs."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from scheduler.admission import Admission
from scheduler.limits import Limits
from scheduler.plan import (
    ACCELERATOR_ONLY,
    IterationPlan,
    IterationResult,
    Overlap,
    PlanMode,
    ScheduledSequence,
    WaveProgress,
)
from scheduler.planner import Planner
from scheduler.residents import Residents
from scheduler.sequence import Sequence
from scheduler.snapshot import HostSequence, PrefillWork, Snapshot
from scheduler.tier import Tier
from scheduler.types import SequenceId


class Foresight:
    """Keeps what the planner has to know beside the sequences themselves."""

    def __init__(self, limits: Limits, residents: Residents, admission: Admission, planner: Planner) -> None:
        self._limits = limits
        self._residents = residents
        self._admission = admission
        self._planner = planner
        self._thought: tuple[Snapshot, Overlap] | None = None
        """The last choice, and what it was made for."""
        self._waves: tuple[WaveProgress, ...] = ()
        self._previous: Overlap | None = None
        self._paused = 0

    def think(self, plan: IterationPlan) -> None:
        """Choose for the state that ``plan``, which is being computed, will probably lead to."""
        self._think_of(self._snapshot(plan, arriving=True))

    def choose(self) -> Overlap:
        """The overlap of the plan being made."""
        if not self._limits.has_device:
            return ACCELERATOR_ONLY
        thought = self._thought or self._think_of(self._snapshot(None, arriving=True))
        return thought[1]

    def confirm(self, rows: bool, main: bool) -> Overlap:
        """What was chosen, or another choice if the plan came out differently.

        Args:
            rows: whether there are host rows.
            main: whether there is a main batch.
        """
        if not (rows or main):
            return ACCELERATOR_ONLY
        if self._thought is not None:
            snapshot = self._thought[0]
            expected = (bool(snapshot.host), bool(snapshot.device_rows or snapshot.prefills))
            if expected != (rows, main):
                self._think_of(self._snapshot(None, arriving=False))
        return self.choose()

    def _think_of(self, snapshot: Snapshot) -> tuple[Snapshot, Overlap]:
        anything = snapshot.host or snapshot.device_rows or snapshot.prefills
        self._thought = (snapshot, self._planner.choose(snapshot) if anything else ACCELERATOR_ONLY)
        return self._thought

    def waves(self, rows: Iterable[Sequence], overlap: Overlap) -> Mapping[SequenceId, int | None]:
        """Divide host rows into waves."""
        host = tuple(HostSequence(row.id, len(row.tokens), row.wave) for row in rows)
        return self._planner.assign(host, overlap) if host else {}

    def planned(self, plan: IterationPlan) -> None:
        """A plan was made."""
        self._thought = None
        self._previous = plan.overlap
        some = plan.overlap.host_rows is not None and plan.overlap.host_rows < len(plan.host_rows)
        pauses = bool(plan.host_rows) and (some or plan.overlap.mode is PlanMode.ACCELERATOR_ONLY)
        self._paused = self._paused + 1 if pauses else 0

    def learn(self, plan: IterationPlan, result: IterationResult) -> None:
        """It was computed."""
        self._waves = result.waves
        if result.timing is not None:
            self._planner.learn(plan.overlap, result.timing)

    def _snapshot(self, plan: IterationPlan | None, arriving: bool) -> Snapshot:
        """As things are, or as they will be after ``plan``, so far as can be known.

        ``arriving`` counts the prompt that will probably be admitted.
        """
        scheduled = {one.sequence_id: one for one in plan.sequences} if plan is not None else {}
        device_rows = device_tokens = 0
        host: list[HostSequence] = []
        prefills: list[PrefillWork] = []
        for sequence in self._residents.running:
            known, computed = self._after(sequence, scheduled.get(sequence.id))
            if sequence.away or computed == known or not self._limits.decodes_in(sequence.tier):
                continue
            on_host = sequence.tier is Tier.HOST
            if known - computed > 1:
                prefills.append(PrefillWork(known - computed, computed, on_host))
            elif on_host:
                host.append(HostSequence(sequence.id, known, sequence.wave))
            else:
                device_rows += 1
                device_tokens += known
        return Snapshot(
            device_rows=device_rows,
            device_tokens=device_tokens,
            host=tuple(host),
            waves=self._waves,
            prefills=(*prefills, *self._arriving()) if arriving else tuple(prefills),
            max_batch_tokens=self._limits.max_batch_tokens,
            paused=self._paused,
            previous=self._previous,
        )

    def _after(self, sequence: Sequence, scheduled: ScheduledSequence | None) -> tuple[int, int]:
        """Tokens known and computed when ``scheduled`` has been; equal where the sequence ends by that."""
        known, computed = len(sequence.tokens), sequence.computed
        if scheduled is None:
            return known, computed
        computed += len(scheduled.token_ids)
        ends = sequence.tokens_left(self._limits.context_length) <= 1
        return (known, computed) if scheduled.sample is None or ends else (known + 1, computed)

    def _arriving(self) -> Iterable[PrefillWork]:
        """The prompt that will probably be admitted."""
        found = self._admission.next()
        if found is not None:
            sequence, place = found
            cached = len(place.hit.pages) * self._limits.page_size
            if len(sequence.tokens) - cached > 1:
                yield PrefillWork(len(sequence.tokens) - cached, cached, place.tier is Tier.HOST)
