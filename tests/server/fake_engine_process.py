"""An engine process without a model: it speaks the frames and makes up tokens.

Choice ``c`` of a prompt that ends in token ``t`` gets ``t+1+1000c, t+2+1000c, ...``. What it does
instead is ordered by the environment, BEHAVIOUR, and by the first token of a prompt.
"""

from __future__ import annotations

import os
import select
import signal
import socket
import sys
import time
from pathlib import Path

import msgspec

from scheduler.messages import (
    AbortRequest,
    AddRequest,
    EngineFacts,
    FromEngine,
    IterationOutput,
    LoadFailed,
    Loading,
    SchedulerStats,
    Start,
    ToEngine,
)
from scheduler.plan import ACCELERATOR_ONLY
from scheduler.types import ChoiceOutput, FinishReason, Request

SILENT, DIE, FLOOD, NONSENSE = 1, 2, 3, 4
"""First prompt tokens: never answer; die of SIGKILL; answer without pauses; send a broken frame."""

BEHAVIOUR = "FAKE_ENGINE_BEHAVIOUR"
"""Variable: refuse, die-loading, load-forever, ignore-eof; unset: load and serve."""
LIVES = "FAKE_ENGINE_LIVES"
"""Variable: file to which each process appends its id."""

REFUSAL = "model.safetensors: tensor lm_head.weight is missing"


class Peer:
    def __init__(self, sock: socket.socket) -> None:
        self.sock = sock
        self.buffer = b""

    def send(self, message: FromEngine) -> None:
        body = msgspec.msgpack.encode(message)
        try:
            self.sock.sendall(len(body).to_bytes(4, "big") + body)
        except (BrokenPipeError, ConnectionResetError):
            sys.exit(0)

    def receive(self, wait: float | None) -> list[ToEngine]:
        if not select.select([self.sock], [], [], wait)[0]:
            return []
        data = self.sock.recv(1 << 20)
        if not data:
            sys.exit(0)
        self.buffer += data
        messages = []
        while len(self.buffer) >= 4 and len(self.buffer) >= 4 + int.from_bytes(self.buffer[:4], "big"):
            end = 4 + int.from_bytes(self.buffer[:4], "big")
            messages.append(msgspec.msgpack.decode(self.buffer[4:end], type=ToEngine))
            self.buffer = self.buffer[end:]
        return messages


class Live:
    """A request and how many tokens each unfinished choice has."""

    def __init__(self, request: Request) -> None:
        self.request = request
        self.lengths = dict.fromkeys(range(request.n), 0)

    @property
    def order(self) -> int:
        return self.request.prompt_token_ids[0]

    def step(self) -> list[ChoiceOutput]:
        outputs = []
        for choice, length in list(self.lengths.items()):
            last = length + 1 == self.request.sampling.max_tokens
            outputs.append(
                ChoiceOutput(
                    request_id=self.request.request_id,
                    index=choice,
                    token_ids=(self.request.prompt_token_ids[-1] + 1 + length + 1000 * choice,),
                    finish_reason=FinishReason.LENGTH if last else None,
                    cached_tokens=0 if length else len(self.request.prompt_token_ids) - 1,
                )
            )
            self.lengths[choice] += 1
            if last:
                del self.lengths[choice]
        return outputs

    def abort(self, index: int | None) -> list[ChoiceOutput]:
        ended = [choice for choice in self.lengths if index in (None, choice)]
        for choice in ended:
            del self.lengths[choice]
        return [
            ChoiceOutput(request_id=self.request.request_id, index=choice, finish_reason=FinishReason.ABORT)
            for choice in ended
        ]


def serve(peer: Peer) -> None:
    live: dict[str, Live] = {}
    iterations = 0
    while True:
        working = any(item.order != SILENT for item in live.values())
        flooding = any(item.order == FLOOD for item in live.values())
        messages = peer.receive((0.0 if flooding else 0.002) if working else None)
        outputs: list[ChoiceOutput] = []
        for message in messages:
            if isinstance(message, AddRequest):
                live[message.request.request_id] = Live(message.request)
            elif isinstance(message, AbortRequest) and message.request_id in live:
                outputs += live[message.request_id].abort(message.index)
        for item in live.values():
            if item.order == DIE:
                os.kill(os.getpid(), signal.SIGKILL)
            if item.order == NONSENSE:
                peer.sock.sendall(b"\x00\x00\x00\x01\xc1")
            if item.order != SILENT:
                outputs += item.step()
        live = {key: item for key, item in live.items() if item.lengths}
        iterations += 1
        running = sum(len(item.lengths) for item in live.values())
        peer.send(IterationOutput(tuple(outputs), stats(iterations, running)))


def stats(iterations: int, running: int) -> SchedulerStats:
    """The number of iterations stands where prefix queries do, for tests that wait for some."""
    return SchedulerStats(
        sequences_running=running,
        sequences_waiting=0,
        sequences_prefilling=0,
        sequences_device=0,
        sequences_host=running,
        host_rows=0,
        host_pages_used=running,
        host_pages_cached=0,
        device_pages_used=0,
        device_pages_cached=0,
        preemptions_total=0,
        migrations_in_total=0,
        migrations_out_total=0,
        migration_bytes_in_total=0,
        migration_bytes_out_total=0,
        prefix_queries_total=iterations,
        prefix_hits_total=0,
        prefill_tokens=0,
        decode_tokens=running,
        iteration_seconds=0.002,
        plan=ACCELERATOR_ONLY if running else None,
        timing=None,
    )


def facts(start: Start) -> EngineFacts:
    return EngineFacts(
        model_name=start.model_name,
        family="llama",
        dtype="float32",
        weights="Q4_0",
        weight_bytes=3 << 20,
        device_name="imaginary CPU",
        vocab_size=49152,
        context_length=2048,
        eos_token_ids=(2,),
        page_size=start.page_size,
        host_kv_pages=start.host_kv_pages or 100,
        device_kv_pages=0,
        page_bytes=4096,
        kv_dtype="float32",
        parameters=1_000_000,
        load_seconds=0.01,
    )


def main() -> None:
    peer = Peer(socket.socket(fileno=int(sys.argv[1])))
    (start,) = peer.receive(None)
    assert isinstance(start, Start)
    behaviour = os.environ.get(BEHAVIOUR)
    if LIVES in os.environ:
        with Path(os.environ[LIVES]).open("a") as lives:
            lives.write(f"{os.getpid()}\n")
    if behaviour == "refuse":
        peer.send(LoadFailed(REFUSAL))
        sys.exit(1)
    peer.send(Loading(tensors_done=0, tensors_total=2, bytes_done=0, bytes_total=4000))
    if behaviour == "die-loading":
        sys.exit(3)
    if behaviour == "load-forever":
        peer.receive(None)
    peer.send(Loading(tensors_done=1, tensors_total=2, bytes_done=1000, bytes_total=4000))
    peer.send(facts(start))
    if behaviour == "ignore-eof":
        while True:
            time.sleep(1)
    serve(peer)


if __name__ == "__main__":
    main()
