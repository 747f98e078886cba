"""benchmarks.throughput against a fake ``tandem`` command, and its arithmetic."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import psutil
import pytest
from safetensors.numpy import save_file

from benchmarks import throughput
from benchmarks.contender import Case, Figures, Latency
from benchmarks.machine import Load, LoadMeter, own_seconds
from benchmarks.results import Sample, ratios, table
from benchmarks.transformers_contender import TransformersContender

ROOT = Path(__file__).resolve().parents[2]
FAKE = f"{sys.executable} -m tests.unit.fake_tandem"
SMALL = ["--streams", "3", "--prompt-tokens", "9", "--output-tokens", "4", "--prefill-tokens", "30"]


@pytest.fixture(autouse=True)
def _in_repository(monkeypatch) -> None:
    monkeypatch.chdir(ROOT)


def children() -> set[int]:
    return {process.pid for process in psutil.Process().children(recursive=True)}


def test_every_case_of_every_dtype_is_measured_in_every_round(tmp_path: Path, capsys) -> None:
    file = tmp_path / "samples.json"
    before = children()
    arguments = ["--tandem", FAKE, "--dtypes", "bfloat16,float32", "--rounds", "2", "--quiet", "1", *SMALL]
    assert throughput.main([*arguments, "--json", str(file)]) == 0
    assert children() == before
    samples = json.loads(file.read_text())
    measured = [(s["round"], s["case"]["streams"], s["case"]["prompt_tokens"], s["dtype"]) for s in samples]
    cases = [(1, 30), (3, 9)]
    assert measured == [
        *[(0, *case, dtype) for case in cases for dtype in ("bfloat16", "float32")],
        *[(1, *case, dtype) for case in cases for dtype in ("float32", "bfloat16")],
    ]
    assert all(s["figures"]["output"] > 0 and 0 <= s["load"]["others"] <= 1 for s in samples)
    out = capsys.readouterr().out
    assert "| prefill 30 " in out and "| 3 x 9 in, 4 out " in out
    assert f"Repeat: python -m benchmarks.throughput --tandem '{FAKE}'" in out


def test_noisy_measurements_are_repeated(tmp_path: Path, monkeypatch) -> None:
    loads = iter([0.9, 0.5, 0.7, 0.2, 0.05])
    monkeypatch.setattr(LoadMeter, "read", lambda self: Load(next(loads), 1.0))
    file = tmp_path / "samples.json"
    arguments = ["--tandem", FAKE, "--dtypes", "float32", "--rounds", "1", *SMALL, "--json", str(file)]
    assert throughput.main(arguments) == 0
    # prefill: three noisy tries, the least noisy counts; streams: quiet at the second
    assert [sample["load"]["others"] for sample in json.loads(file.read_text())] == [0.5, 0.05]


@pytest.mark.parametrize(
    ("model", "message"), [("broken", "the model is broken"), ("failing", "scripted 500")]
)
def test_a_server_that_fails_ends_the_benchmark(model: str, message: str, capsys) -> None:
    before = children()
    assert throughput.main(["--tandem", FAKE, "--dtypes", "float32", "--model", model, *SMALL]) == 1
    assert message in capsys.readouterr().err
    assert children() == before


def save_tiny_llama(directory: Path) -> None:
    """One layer, width 8, as transformers would save it (without importing it: it takes seconds)."""
    shapes = {
        "embed_tokens": (99, 8),
        "norm": (8,),
        "layers.0.input_layernorm": (8,),
        "layers.0.post_attention_layernorm": (8,),
        **{f"layers.0.self_attn.{name}_proj": (8, 8) for name in "qkvo"},
        **{f"layers.0.mlp.{name}_proj": (8, 8) for name in ("gate", "up", "down")},
    }
    rng = np.random.default_rng(0)
    tensors = {f"model.{name}.weight": rng.random(shape, np.float32) for name, shape in shapes.items()}
    save_file(tensors, directory / "model.safetensors", metadata={"format": "pt"})
    config = {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "vocab_size": 99,
        "hidden_size": 8,
        "intermediate_size": 8,
        "num_hidden_layers": 1,
        "num_attention_heads": 2,
        "num_key_value_heads": 2,
        "tie_word_embeddings": True,
    }
    (directory / "config.json").write_text(json.dumps(config))


def test_transformers_is_measured(tmp_path: Path) -> None:
    save_tiny_llama(tmp_path)
    contender = TransformersContender(str(tmp_path), "float32")
    try:
        decode = contender.measure(Case(3, 9, 5), seed=1)
        prefill = contender.measure(Case(1, 20, 1), seed=2)
    finally:
        contender.close()
    assert decode.decode is not None and decode.decode > 0 and decode.output > 0
    assert prefill.decode is None and prefill.prefill == pytest.approx(20 / prefill.ttft.p50)
    assert prefill.inter_token is None and decode.inter_token is not None
    assert 0 < decode.inter_token.p50 <= decode.inter_token.p99


# -- arithmetic


def sample(engine: str, case: Case, number: int, decode: float) -> Sample:
    ttft, gaps = Latency(0.1 * number, 0.2 * number), Latency(0.01, 0.03)
    figures = Figures(decode=decode, output=decode / 2, prefill=None, ttft=ttft, inter_token=gaps)
    return Sample(engine, "float32", case, number, figures, Load(0.01 * number, 2.0))


def test_medians_and_ratios() -> None:
    one, many = Case(1, 128, 128), Case(16, 128, 128)
    samples = [
        *[sample("tandem", one, i, rate) for i, rate in enumerate((10, 100, 20))],
        *[sample("tandem", many, i, rate) for i, rate in enumerate((120, 130, 10))],
        *[sample("transformers", many, i, rate) for i, rate in enumerate((30, 60, 90))],
    ]
    assert ratios(samples) == [
        "tandem float32: 16 streams / 1 stream = 6.00",
        "tandem / transformers, float32, 16 x 128 in, 128 out = 2.00",
    ]
    row = next(line for line in table(samples).splitlines() if "16 x 128" in line)
    cells = [cell.strip() for cell in row.strip("|").split("|")]
    assert cells[3:] == ["120.0", "10.0 - 130.0", "60.0", "-", "100 / 200", "10 / 30", "2%", "2.0"]


def test_quantiles_are_values_that_were_seen() -> None:
    assert Latency.of([3.0, 1.0, 2.0]) == Latency(2.0, 3.0)
    assert Latency.of([float(number) for number in range(1, 201)]) == Latency(100.0, 198.0)
    assert Latency.of([5.0]) == Latency(5.0, 5.0)


def test_the_work_of_others_is_what_is_used_and_not_ours() -> None:
    readings = iter([(100.0, 50.0, 7.0), (120.0, 65.0, 12.0)])
    assert LoadMeter(lambda: next(readings)).read().others == pytest.approx((15 - 5) / 20)
    rounding = iter([(100.0, 50.0, 7.0), (120.0, 65.0, 22.01)])
    assert LoadMeter(lambda: next(rounding)).read().others == 0


def test_work_of_ended_children_is_ours() -> None:
    burn = "import time\nwhile time.process_time() < 0.3: pass"
    before = own_seconds()
    subprocess.run([sys.executable, "-c", burn], check=True)
    assert own_seconds() - before >= 0.25
