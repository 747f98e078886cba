"""The engine client against a real child process that speaks the frames (fake_engine_process.py)."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import subprocess
import sys
from collections.abc import AsyncIterator, Callable, Coroutine
from pathlib import Path

import pytest

from scheduler.messages import EngineFacts, Loading, SchedulerStats, Start
from scheduler.types import ChoiceOutput, FinishReason, Request, RequestId, SamplingParams
from server.engine_client import restart_policy
from server.engine_client.client import EngineFailed, SupervisedEngineClient
from server.engine_client.protocol import EngineClient, EngineDied, EngineState, EngineUnavailable, QueueFull
from tests.server import fake_engine_process as fake

ENGINE = "tests.server.fake_engine_process"
PATIENCE = 20.0


@pytest.fixture
def lives(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Where the engine writes its process id, once a life."""
    monkeypatch.setenv(fake.LIVES, str(tmp_path / "lives"))
    return tmp_path / "lives"


@pytest.fixture(autouse=True)
def quick_restarts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(restart_policy, "FIRST_DELAY", 0.01)


def run(test: Coroutine[object, object, None]) -> None:
    asyncio.run(asyncio.wait_for(test, PATIENCE))


def start_message(max_running: int = 4) -> Start:
    return Start(
        model_kind="gguf",
        model_path="/models/tiny.gguf",
        model_name="tiny",
        dtype="auto",
        quantization="auto",
        max_model_len=None,
        page_size=16,
        host_kv_pages=77,
        host_kv_gib=None,
        kv_dtype="auto",
        max_batch_tokens=512,
        max_running=max_running,
        prefix_caching=True,
        threads=None,
        cpu_kernels="auto",
        device="cpu",
        device_kv_pages=None,
        emulate_profile=None,
        profile=None,
        plan_mode="auto",
        tpot_limit=None,
        host_tpot_limit=None,
        log_level="info",
    )


@contextlib.asynccontextmanager
async def engine(
    start: Start, *, queue_limit: int = 8, restart_limit: int = 3, **options: object
) -> AsyncIterator[tuple[SupervisedEngineClient, asyncio.Task[None]]]:
    client = SupervisedEngineClient(
        start, queue_limit=queue_limit, restart_limit=restart_limit, module=ENGINE, **options
    )
    task = asyncio.create_task(client.supervise())
    try:
        await asyncio.wait(
            [task, asyncio.ensure_future(client.wait_until_ready())], return_when=asyncio.FIRST_COMPLETED
        )
        yield client, task
    finally:
        task.cancel()
        with contextlib.suppress(asyncio.CancelledError, EngineFailed):
            await task


def request(name: str, *prompt: int, n: int = 1, max_tokens: int = 5) -> Request:
    return Request(
        request_id=RequestId(name),
        prompt_token_ids=prompt or (100,),
        sampling=SamplingParams(max_tokens=max_tokens, seed=0),
        n=n,
    )


async def collect(stream: AsyncIterator[tuple[ChoiceOutput, ...]]) -> dict[int, list[ChoiceOutput]]:
    outputs: dict[int, list[ChoiceOutput]] = {}
    async for batch in stream:
        assert len({output.index for output in batch}) == len(batch), "one output for each choice in a batch"
        for output in batch:
            outputs.setdefault(output.index, []).append(output)
    return outputs


def tokens(outputs: list[ChoiceOutput]) -> list[int]:
    return [token for output in outputs for token in output.token_ids]


async def until(condition: Callable[[], bool]) -> None:
    while not condition():
        await asyncio.sleep(0.005)


def test_it_satisfies_the_protocol_of_the_http_surface() -> None:
    def typed(client: EngineClient) -> EngineClient:
        return client

    async def test() -> None:
        typed(SupervisedEngineClient(start_message(), queue_limit=1, restart_limit=1))

    run(test())


def test_facts_and_progress_arrive_before_requests_are_taken(lives: Path) -> None:
    async def test() -> None:
        seen: list[Loading] = []
        async with engine(start_message(), on_loading=seen.append) as (client, _):
            assert client.state is EngineState.READY
            assert isinstance(client.facts, EngineFacts)
            assert client.facts.host_kv_pages == 77, "options reach the engine"
            assert [loading.bytes_done for loading in seen] == [0, 1000]
            assert str(client.process_id) == lives.read_text().strip()

    run(test())


def test_starting_engine_takes_no_requests() -> None:
    async def test() -> None:
        client = SupervisedEngineClient(start_message(), queue_limit=1, restart_limit=1, module=ENGINE)
        with pytest.raises(EngineUnavailable) as refusal:
            client.submit(request("a"))
        assert refusal.value.state is EngineState.STARTING
        assert 1 <= refusal.value.retry_after_seconds <= 60

    run(test())


def test_every_choice_gets_its_tokens_and_one_ending() -> None:
    async def test() -> None:
        figures: list[SchedulerStats] = []
        async with engine(start_message(), on_iteration=figures.append) as (client, _):
            streams = [
                client.submit(request(f"r{i}", 100 * i, 100 * i + 7, n=i, max_tokens=3 + i))
                for i in (1, 2, 3)
            ]
            for i, outputs in enumerate(await asyncio.gather(*map(collect, streams)), start=1):
                assert sorted(outputs) == list(range(i))
                for choice, parts in outputs.items():
                    first = 100 * i + 8 + 1000 * choice
                    assert tokens(parts) == list(range(first, first + 3 + i))
                    assert [part.finish_reason for part in parts if part.finish_reason] == ["length"]
                    assert parts[0].cached_tokens == 1
            assert await client.wait_until_idle(1.0)
            assert client.stats == figures[-1]

    run(test())


def test_abort_ends_the_stream_at_once_and_reaches_the_engine() -> None:
    async def test() -> None:
        async with engine(start_message()) as (client, _):
            stream = client.submit(request("silent", fake.SILENT, n=2))
            await until(lambda: client.stats is not None and client.stats.sequences_running == 2)
            client.abort(RequestId("silent"))
            outputs = await collect(stream)
            assert sorted(outputs) == [0, 1]
            assert all([part.finish_reason for part in parts] == ["abort"] for parts in outputs.values())
            assert await client.wait_until_idle(0.0)
            await until(lambda: client.stats is not None and client.stats.sequences_running == 0)
            client.abort(RequestId("silent"))
            client.abort(RequestId("never seen"))

    run(test())


def test_one_choice_is_aborted_and_the_others_go_on() -> None:
    async def test() -> None:
        async with engine(start_message()) as (client, _):
            stream = client.submit(request("two", n=2, max_tokens=30))
            await anext(stream)
            client.abort(RequestId("two"), 0)
            outputs = await collect(stream)
            assert outputs[0][-1].finish_reason is FinishReason.ABORT
            assert len(tokens(outputs[0])) < 29
            assert outputs[1][-1].finish_reason is FinishReason.LENGTH
            assert tokens(outputs[1])[-1] == 100 + 30 + 1000

    run(test())


def test_killed_engine_fails_every_stream_and_is_restarted(lives: Path) -> None:
    async def test() -> None:
        async with engine(start_message()) as (client, _):
            streams = [client.submit(request(f"r{i}", fake.SILENT)) for i in range(5)]
            await until(lambda: client.stats is not None)
            assert client.process_id is not None
            os.kill(client.process_id, signal.SIGKILL)
            for stream in streams:
                with pytest.raises(EngineDied):
                    await collect(stream)
            assert client.facts is None and client.stats is None
            with pytest.raises(EngineUnavailable) as refusal:
                client.submit(request("between"))
            assert refusal.value.state is EngineState.RESTARTING
            assert 1 <= refusal.value.retry_after_seconds <= 60
            await until(lambda: client.state is EngineState.READY)
            assert client.restarts == 1
            assert len(lives.read_text().split()) == 2
            assert tokens((await collect(client.submit(request("after"))))[0]) == [101, 102, 103, 104, 105]

    run(test())


def test_outputs_that_arrived_before_the_death_are_delivered_first() -> None:
    async def test() -> None:
        async with engine(start_message()) as (client, _):
            stream = client.submit(request("a", max_tokens=1000))
            await until(lambda: client.stats is not None and client.stats.prefix_queries_total > 3)
            assert client.process_id is not None
            os.kill(client.process_id, signal.SIGKILL)
            await until(lambda: client.facts is None)
            assert tokens(list(await anext(stream)))[:3] == [101, 102, 103]
            with pytest.raises(EngineDied):
                await anext(stream)

    run(test())


def test_engine_that_talks_nonsense_is_replaced(caplog: pytest.LogCaptureFixture) -> None:
    async def test() -> None:
        async with engine(start_message()) as (client, _):
            with pytest.raises(EngineDied):
                await collect(client.submit(request("a", fake.NONSENSE)))
            await until(lambda: client.state is EngineState.READY)
            assert "can't be read" in caplog.text

    run(test())


def test_it_gives_up_after_the_restart_limit(lives: Path) -> None:
    async def test() -> None:
        async with engine(start_message(), restart_limit=2) as (client, task):
            for life in range(3):
                await until(lambda: client.state is EngineState.READY)
                with pytest.raises(EngineDied):
                    await collect(client.submit(request(f"r{life}", fake.DIE)))
            with pytest.raises(EngineFailed, match=r"SIGKILL.*too often"):
                await task
            assert client.state is EngineState.FAILED
            with pytest.raises(EngineUnavailable):
                client.submit(request("late"))
            assert len(lives.read_text().split()) == 3

    run(test())


@pytest.mark.parametrize(
    ("behaviour", "message"), [("refuse", fake.REFUSAL), ("die-loading", "ended with exit code 3")]
)
def test_a_first_load_that_fails_is_final(
    lives: Path, monkeypatch: pytest.MonkeyPatch, behaviour: str, message: str
) -> None:
    monkeypatch.setenv(fake.BEHAVIOUR, behaviour)

    async def test() -> None:
        async with engine(start_message()) as (client, task):
            with pytest.raises(EngineFailed, match=message):
                await task
            assert client.state is EngineState.FAILED
            assert len(lives.read_text().split()) == 1

    run(test())


def test_a_consumer_that_sleeps_blocks_nobody_and_gets_it_all_in_one_batch() -> None:
    async def test() -> None:
        async with engine(start_message()) as (client, _):
            asleep = client.submit(request("asleep", fake.FLOOD, n=2, max_tokens=3000))
            awake = [client.submit(request(f"r{i}", max_tokens=50)) for i in range(3)]
            for outputs in await asyncio.gather(*map(collect, awake)):
                assert len(tokens(outputs[0])) == 50
            assert await client.wait_until_idle(10.0)
            batch = await anext(asleep)
            assert [len(output.token_ids) for output in batch] == [3000, 3000]
            assert batch[1].token_ids == tuple(range(1004, 4004))
            assert all(output.finish_reason is FinishReason.LENGTH for output in batch)
            with pytest.raises(StopAsyncIteration):
                await anext(asleep)

    run(test())


def test_queue_takes_what_fits_and_refuses_the_next() -> None:
    async def test() -> None:
        async with engine(start_message(max_running=4), queue_limit=2) as (client, _):
            client.submit(request("three", fake.SILENT, n=3))
            client.submit(request("straddles", fake.SILENT, n=3))
            client.submit(request("waits", fake.SILENT))
            client.submit(request("waits too", fake.SILENT, n=4))
            with pytest.raises(QueueFull) as refusal:
                client.submit(request("refused", fake.SILENT))
            assert 1 <= refusal.value.retry_after_seconds <= 60
            client.abort(RequestId("three"), 0)
            with pytest.raises(QueueFull):
                client.submit(request("refused", fake.SILENT))
            client.abort(RequestId("waits"))
            client.submit(request("taken", fake.SILENT))

    run(test())


def test_a_live_id_is_not_taken_twice() -> None:
    async def test() -> None:
        async with engine(start_message()) as (client, _):
            client.submit(request("a", fake.SILENT))
            with pytest.raises(ValueError, match="in use"):
                client.submit(request("a"))

    run(test())


def test_draining_finishes_what_runs_and_takes_nothing_new() -> None:
    async def test() -> None:
        async with engine(start_message()) as (client, _):
            running = client.submit(request("a", max_tokens=40))
            client.drain()
            with pytest.raises(EngineUnavailable) as refusal:
                client.submit(request("b"))
            assert refusal.value.state is EngineState.DRAINING
            assert not await client.wait_until_idle(0.0)
            assert len(tokens((await collect(running))[0])) == 40
            assert await client.wait_until_idle(1.0)

    run(test())


def test_what_is_left_after_draining_is_withdrawn() -> None:
    async def test() -> None:
        async with engine(start_message()) as (client, _):
            stuck = client.submit(request("a", fake.SILENT, n=2))
            client.drain()
            assert client.end_all("the server is shutting down") == 1
            outputs = await collect(stuck)
            assert [outputs[i][0].finish_reason for i in (0, 1)] == [FinishReason.ABORT] * 2
            assert outputs[0][0].error == "the server is shutting down"
            assert await client.wait_until_idle(0.0)

    run(test())


def test_an_engine_that_dies_while_draining_is_not_restarted(lives: Path) -> None:
    async def test() -> None:
        async with engine(start_message()) as (client, task):
            stream = client.submit(request("a", fake.SILENT))
            client.drain()
            assert client.process_id is not None
            os.kill(client.process_id, signal.SIGKILL)
            with pytest.raises(EngineDied):
                await collect(stream)
            await task
            assert len(lives.read_text().split()) == 1

    run(test())


@pytest.mark.parametrize("behaviour", ["", "ignore-eof", "load-forever"])
def test_the_engine_is_gone_when_supervision_ends(
    lives: Path, monkeypatch: pytest.MonkeyPatch, behaviour: str
) -> None:
    monkeypatch.setenv(fake.BEHAVIOUR, behaviour)

    async def test() -> None:
        client = SupervisedEngineClient(start_message(), queue_limit=1, restart_limit=1, module=ENGINE)
        task = asyncio.create_task(client.supervise())
        await client.wait_until_checked()
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        with pytest.raises(ProcessLookupError):
            os.kill(int(lives.read_text()), 0)

    run(test())


def test_the_engine_does_not_survive_a_killed_server(lives: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """This engine doesn't notice that its socket was closed: on Linux the kernel ends it."""
    monkeypatch.setenv(fake.BEHAVIOUR, "ignore-eof")
    if sys.platform != "linux":
        return
    server = subprocess.Popen([sys.executable, "-c", SERVER_THAT_HANGS], cwd=ROOT, stdout=subprocess.PIPE)
    try:
        assert server.stdout is not None
        assert server.stdout.readline() == b"ready\n"
        engine_id = int(lives.read_text())
        assert os.getsid(engine_id) != os.getsid(server.pid), "the terminal's Ctrl-C is not for the engine"
    finally:
        server.kill()
        server.communicate()

    async def test() -> None:
        await until(lambda: not alive(engine_id))

    run(test())


ROOT = Path(__file__).resolve().parents[2]
SERVER_THAT_HANGS = f"""
import asyncio
from server.engine_client.client import SupervisedEngineClient
from tests.server.test_engine_client import start_message

async def main():
    client = SupervisedEngineClient(start_message(), queue_limit=1, restart_limit=1, module={ENGINE!r})
    task = asyncio.create_task(client.supervise())
    ready = asyncio.create_task(client.wait_until_ready())
    await asyncio.wait([task, ready], return_when="FIRST_COMPLETED")
    print("ready" if client.facts else "failed", flush=True)
    await task

asyncio.run(main())
"""


def alive(process_id: int) -> bool:
    """Whether it runs: a zombie that waits for its adoptive parent doesn't."""
    with contextlib.suppress(FileNotFoundError, ProcessLookupError):
        return Path(f"/proc/{process_id}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    return False


def test_an_engine_that_does_nothing_is_stalled_while_there_is_work() -> None:
    async def test() -> None:
        async with engine(start_message(), stall_timeout=0.05) as (client, _):
            await asyncio.sleep(0.1)
            assert not client.health.stalled
            stream = client.submit(request("a", fake.SILENT))
            assert not client.health.stalled
            await until(lambda: client.health.stalled)
            assert client.health.requests == 1
            client.abort(stream.request_id)
            assert not client.health.stalled

    run(test())
