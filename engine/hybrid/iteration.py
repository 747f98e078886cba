"""One iteration: the main batch goes through the layers, host rows ride with it or take passes of their own.

Nothing here waits for the CPU. Between two units the waves are asked how far they are, and those that are
ready get on; the others do so later.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import torch

from engine.attention.base import AttentionBackend
from engine.devices.base import Buffer, Device, Event
from engine.hybrid import rows as units
from engine.hybrid.host_rows import HostRows
from engine.hybrid.main_batch import MainBatch
from engine.hybrid.meter import Meter
from engine.hybrid.migrations import Migrations
from engine.hybrid.pacer import Pacer
from engine.hybrid.sampling import Sampling
from engine.hybrid.wave import Phase, Wave
from engine.models.decoder import DecoderModel
from engine.sampling.native import NativeSampler
from engine.wanted_logits import Wanted
from scheduler.clock import Clock
from scheduler.plan import IterationPlan, PlanMode, SampledToken, ScoredTokens
from scheduler.tier import Tier
from scheduler.types import SequenceId
from scheduler.walk import passes_allowed
from scheduler.work import Stage, Work

_POLL_SECONDS = 0.001
"""Between two looks, if the doorbell stays silent."""
_HOST_ONLY_SECONDS = 0.02
"""How long an iteration without a main batch waits for the CPU: requests come in between two of them."""


class Machine:
    """What iterations share: the accelerator, the model on it, and what goes on from one to the next."""

    def __init__(
        self, *, model: DecoderModel, device: Device, attention: Mapping[Tier, AttentionBackend],
        host_rows: HostRows, migrations: Migrations, meter: Meter, pacer: Pacer, clock: Clock,
        page_size: int, eos_token_ids: tuple[int, ...], sampler: NativeSampler | None,
    ) -> None:  # fmt: skip
        """``attention``: the accelerator's, over the pages of each tier."""
        self.model = model
        self.device = device
        self.attention = attention
        self.host_rows = host_rows
        self.migrations = migrations
        self.meter = meter
        self.pacer = pacer
        self.clock = clock
        self.page_size = page_size
        self.eos_token_ids = eos_token_ids
        self.sampler = sampler
        self.events = 0
        """Counts changes of waves' phases: their order of waiting."""


class Iteration:
    """Runs one plan. All its methods belong to the executor's thread."""

    def __init__(self, machine: Machine, plan: IterationPlan) -> None:
        self._machine = machine
        self._plan = plan
        self._overlapping = plan.overlap.mode is not PlanMode.ACCELERATOR_ONLY
        self._passes = plan.overlap.passes if self._overlapping else 0
        self._last_layer = len(machine.model.layers) - 1
        self._samplings: list[tuple[Sampling, Wave]] = []
        self._host_tokens: list[SampledToken] = []
        self.scores: tuple[ScoredTokens, ...] = ()
        """Of the main batch's prompts."""
        self.passes = 0
        self.late = 0
        """Rows whose layer the main batch went through without them."""

    def run(self) -> tuple[SampledToken, ...]:
        """All that the plan asks for. Returns the tokens: the main batch's in plan order, then host rows'."""
        machine, plan = self._machine, self._plan
        machine.pacer.begin()
        machine.host_rows.take(plan.host_rows)
        machine.migrations.begin(plan.migrations)
        tokens: list[SampledToken] = []
        if plan.sequences:
            tokens = self._main(MainBatch(plan.sequences, machine.page_size))
        else:
            self._without_main()
        self._wait(lambda: not self._samplings)
        return (*tokens, *self._host_tokens)

    # -- the main batch

    def _main(self, main: MainBatch) -> list[SampledToken]:
        self._enter(main)
        for layer in range(self._last_layer):
            self._passes_before(layer)
            self._advance(main, layer)
        self._passes_before(self._last_layer)
        return self._leave(main)

    def _enter(self, main: MainBatch) -> None:
        machine = self._machine
        waves = [wave for wave in machine.host_rows if wave.phase is Phase.BEGINS and self._overlapping]
        groups = [main, *(wave.entering() for wave in waves)]
        handing_over = [wave.hand_over() for wave in waves]

        def enter() -> None:
            main.plan_attention(machine.attention)
            units.enter(machine.model, groups)
            for hand_over in handing_over:
                hand_over()

        rows = len(main) + _rows(waves)
        self._launch(enter, Work(Stage.ENTRY, rows), waves, main, attend=0)

    def _advance(self, main: MainBatch, layer: int) -> None:
        machine = self._machine
        waves = self._riders(layer)
        taking = [wave.advancing() for wave in waves]
        handing_over = [wave.hand_over() for wave in waves]

        def advance() -> None:
            units.advance(machine.model, layer, [(main, main.attended), *(take() for take in taking)])
            for hand_over in handing_over:
                hand_over()

        rows = len(main) + _rows(waves)
        self._launch(advance, Work(Stage.DENSE, rows), waves, main, attend=layer + 1)

    def _leave(self, main: MainBatch) -> list[SampledToken]:
        machine = self._machine
        waves = self._riders(self._last_layer)
        if not main.wanted and not waves:
            self._wait_for(machine.device.compute.record())
            return []
        taking = [wave.advancing() for wave in waves]
        logits = Buffer("logits")

        def leave() -> None:
            chosen = [(main, main.attended, main.sample_rows)] if main.wanted else []
            riding = [(*take(), None) for take in taking]
            logits.set(units.leave(machine.model, [*chosen, *riding]))

        wanted = [*main.wanted, *(pair for wave in waves for pair in self._wanted(wave))]
        sampling = self._launch_leave(leave, logits, waves, len(main.sample_rows), wanted)
        self._wait(sampling.ready)
        tokens, scores = sampling.results(machine.eos_token_ids, machine.sampler)
        self.scores = tuple(scores)
        by_sequence = {token.sequence_id: token for token in tokens}
        for wave in waves:
            self._end_token(wave, by_sequence)
        return [by_sequence[each.sequence_id] for each in self._plan.sequences if each.sample is not None]

    def _riders(self, layer: int) -> list[Wave]:
        """Ready waves that the main batch takes along from ``layer``."""
        here = [wave for wave in self._machine.host_rows if wave.cursor == layer and wave.rows]
        riders = [
            wave
            for wave in here
            if wave.phase is Phase.READY and self._overlapping and self._machine.host_rows.may_leave(wave)
        ]
        late = [wave for wave in here if wave.phase is Phase.ATTENDING]
        self.late += _rows(late)
        return riders

    # -- passes

    def _passes_before(self, upcoming: int) -> None:
        """Take passes until the main batch is due and nobody else is ready."""
        self._until_due()
        while (wave := self._next_pass(upcoming)) is not None:
            self._pass(wave)
            self._until_due()

    def _next_pass(self, upcoming: int | None) -> Wave | None:
        """Whoever waits longest, but for those who can ride in the upcoming unit."""
        if self.passes >= self._allowed(upcoming):
            return None
        rows = self._machine.host_rows
        ready = [
            wave
            for wave in rows
            if (wave.phase is Phase.BEGINS or (wave.phase is Phase.READY and wave.cursor != upcoming))
            and rows.may_leave(wave)
        ]
        return min(ready, key=lambda wave: wave.since, default=None)

    def _allowed(self, upcoming: int | None) -> int:
        """Passes that may have been taken before the main batch, if there is one, goes on from a layer."""
        if upcoming is None:
            return self._passes
        return passes_allowed(self._passes, upcoming + 1, self._last_layer + 1)

    def _pass(self, wave: Wave) -> None:
        self.passes += 1
        if wave.phase is Phase.BEGINS:
            self._pass_into(wave)
        elif wave.cursor < self._last_layer:
            self._pass_on(wave)
        else:
            self._pass_out(wave)

    def _pass_into(self, wave: Wave) -> None:
        model, tokens, hand_over = self._machine.model, wave.entering(), wave.hand_over()

        def enter() -> None:
            units.enter(model, [tokens])
            hand_over()

        self._launch(enter, Work(Stage.ENTRY, len(wave.rows)), [wave])

    def _pass_on(self, wave: Wave) -> None:
        model, layer = self._machine.model, wave.cursor
        take, hand_over = wave.advancing(), wave.hand_over()

        def advance() -> None:
            units.advance(model, layer, [take()])
            hand_over()

        self._launch(advance, Work(Stage.DENSE, len(wave.rows)), [wave])

    def _pass_out(self, wave: Wave) -> None:
        model, take = self._machine.model, wave.advancing()
        logits = Buffer(f"logits of wave {wave.number}")

        def leave() -> None:
            logits.set(units.leave(model, [(*take(), None)]))

        sampling = self._launch_leave(leave, logits, [wave], 0, self._wanted(wave))
        self._samplings.append((sampling, wave))

    def _without_main(self) -> None:
        """Passes only, until there is a token, or something else to tell, or it has taken long enough."""
        machine = self._machine
        until = machine.clock.now() + _HOST_ONLY_SECONDS

        def over() -> bool:
            wave = self._next_pass(None) if self._due() else None
            if wave is not None:
                self._pass(wave)
            news = bool(self._host_tokens) or machine.host_rows.has_dropped or machine.migrations.has_done
            return news or machine.clock.now() >= until

        self._wait(over)

    # -- launching

    def _launch(
        self,
        operation: Callable[[], None],
        work: Work,
        waves: Sequence[Wave],
        main: MainBatch | None = None,
        attend: int = 0,
    ) -> None:
        """A unit that ends in attention: the waves' on the CPU, the main batch's on the accelerator."""
        machine = self._machine
        compute = machine.device.compute
        for wave in waves:
            wave.let_wait(compute)
        compute.launch(
            _inference(operation),
            (work,),
            reads=[each for wave in waves for each in wave.unit_reads],
            writes=[each for wave in waves for each in wave.unit_writes],
        )
        seconds = machine.meter.seconds((work,))
        unit = compute.record()
        for wave in waves:
            wave.send(unit, self._count())
        if main is not None:
            compute.launch(
                _inference(lambda: main.attend(attend)),
                main.attention_work,
                reads=main.pages_read,
                writes=main.pages_written,
            )
            seconds += machine.meter.seconds(main.attention_work)
            unit = compute.record()
        machine.pacer.launched(unit, seconds)

    def _launch_leave(
        self,
        operation: Callable[[], None],
        logits: Buffer,
        waves: Sequence[Wave],
        main_rows: int,
        wanted: Sequence[Wanted],
    ) -> Sampling:
        machine = self._machine
        rows = main_rows + _rows(waves)
        work = (Work(Stage.EXIT, rows), Work(Stage.HEAD, rows))
        compute = machine.device.compute
        for wave in waves:
            wave.let_wait(compute)
        compute.launch(
            _inference(operation),
            work,
            reads=[each for wave in waves for each in wave.unit_reads],
            writes=[logits],
        )
        unit = compute.record()
        for wave in waves:
            wave.sampled_from(self._count())
        machine.pacer.launched(unit, machine.meter.seconds(work))
        return Sampling(machine.device, logits, unit, wanted, machine.model.config.vocab_size)

    # -- waiting

    def _until_due(self) -> None:
        """Until the next unit is to be launched."""
        self._wait(self._due)

    def _due(self) -> bool:
        if not (self._overlapping and self._plan.host_rows):
            return self._machine.pacer.has_room()
        return self._machine.pacer.time_left() == 0.0

    def _wait_for(self, event: Event) -> None:
        self._wait(event.query)

    def _wait(self, condition: Callable[[], bool]) -> None:
        """Keep waves, samplings and migrations going until ``condition``, without using the CPU meanwhile."""
        self._poll()
        while not condition():
            left = self._machine.pacer.time_left()
            self._machine.device.wait(min(left, _POLL_SECONDS) if left else _POLL_SECONDS)
            self._poll()

    def _poll(self) -> None:
        machine = self._machine
        moved = [wave for wave in machine.host_rows if wave.poll(machine.events + 1)]
        if moved:
            machine.events += 1
            machine.host_rows.settle()
        for pending in self._samplings[:]:
            sampling, wave = pending
            if sampling.ready():
                self._samplings.remove(pending)
                tokens = sampling.tokens(machine.eos_token_ids, machine.sampler)
                self._end_token(wave, {token.sequence_id: token for token in tokens})
        machine.migrations.poll()

    def _end_token(self, wave: Wave, sampled: dict[SequenceId, SampledToken]) -> None:
        tokens = {
            row.sequence_id: None if sampled[row.sequence_id].error else sampled[row.sequence_id].token_id
            for row in wave.rows
        }
        wanted = self._machine.host_rows.sampled(wave, tokens)
        self._host_tokens += [sampled[sequence_id] for sequence_id in wanted]

    def _wanted(self, wave: Wave) -> list[Wanted]:
        return [(row.sequence_id, row.sample) for row in self._machine.host_rows.spec_rows(wave)]

    def _count(self) -> int:
        self._machine.events += 1
        return self._machine.events


def _rows(waves: Sequence[Wave]) -> int:
    return sum(len(wave.rows) for wave in waves)


def _inference(operation: Callable[[], None]) -> Callable[[], None]:
    def run() -> None:
        with torch.inference_mode():
            operation()

    return run
