"""Writes the profiles that are not measured: from published hardware figures, and a made-up one to emulate.

python -m benchmarks.published_profiles

Every figure is one of published hardware (datasheets), follows from the model's shape, or is an assumption;
the profile's provenance names them all. A stage takes the longer of moving its bytes and doing its
arithmetic (roofline), with a share of the peak rates that is reached in practice.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from scheduler.profile import (
    FORMAT,
    AcceleratorTimes,
    AttentionTimes,
    CopyTimes,
    ModelShape,
    Profile,
    Provenance,
    RowTimes,
    encode_profile,
)

FOLDER = Path(__file__).resolve().parents[1] / "configs" / "profiles"
DATE = "2026-11-30"

ROWS = (1, 16, 32, 64, 96, 128, 160, 192, 256, 384, 512, 768, 1024, 2048, 4096)
DECODE_ROWS = (1, 64, 256)
DECODE_TOKENS = (256, 4096, 65536, 1048576)
PREFILL_ROWS = (1, 16, 64, 128, 256, 512, 1024, 2048, 4096)
CONTEXTS = (0, 256, 512, 1024, 2048, 4096, 8192, 16384, 32768, 65536, 131072)

BANDWIDTH_SHARE = 0.8
ARITHMETIC_SHARE = 0.5
ATTENTION_SHARE = 0.3
BUS_SHARE = 0.75
KERNEL_START = 10e-6
COPY_LATENCY = 10e-6
LAUNCH = 100e-6
OVERHEAD = 2e-3
HOST_BANDWIDTH = 40e9
HOST_LATENCY = 20e-6
HALF = 2
"""Bytes of a 16 bit number."""


@dataclass(frozen=True)
class Accelerator:
    """Published figures: bytes and operations a second."""

    name: str
    bandwidth: float
    arithmetic: float
    bus: float
    """In one direction."""
    source: str


@dataclass(frozen=True)
class Model:
    """A published model."""

    shape: ModelShape
    intermediate_size: int
    source: str

    @property
    def attention_weights_before(self) -> int:
        """Of the query, key and value projections of one layer."""
        shape = self.shape
        return shape.hidden_size * (shape.heads + 2 * shape.kv_heads) * shape.head_dim

    @property
    def layer_weights(self) -> int:
        """Of one layer."""
        shape = self.shape
        output = shape.heads * shape.head_dim * shape.hidden_size
        return self.attention_weights_before + output + 3 * shape.hidden_size * self.intermediate_size

    @property
    def head_weights(self) -> int:
        """Of the vocabulary projection."""
        return self.shape.vocab_size * self.shape.hidden_size

    @property
    def kv_bytes(self) -> int:
        """Keys and values of one token in one layer, 16 bit."""
        return 2 * self.shape.kv_heads * self.shape.head_dim * HALF

    @property
    def pair_operations(self) -> int:
        """Of one new token attending to one token, in one layer."""
        return 4 * self.shape.heads * self.shape.head_dim


T4 = Accelerator(
    name="NVIDIA T4, 16 GB",
    bandwidth=320e9,
    arithmetic=65e12,
    bus=15.75e9,
    source="NVIDIA T4 datasheet: 320 GB/s, 65 TFLOPS mixed precision FP16/FP32, 16 GB, PCIe 3.0 x16 "
    "(16 lanes of 8 GT/s with 128b/130b coding are 15.75 GB/s in each direction)",
)
A10 = Accelerator(
    name="NVIDIA A10, 24 GB",
    bandwidth=600e9,
    arithmetic=125e12,
    bus=31.5e9,
    source="NVIDIA A10 datasheet: 600 GB/s, 125 TFLOPS BF16 tensor without sparsity, 24 GB, PCIe 4.0 x16 "
    "(16 lanes of 16 GT/s with 128b/130b coding are 31.5 GB/s in each direction)",
)
LLAMA_2_7B = Model(
    shape=ModelShape(
        name="Llama-2-7B",
        layers=32,
        hidden_size=4096,
        heads=32,
        kv_heads=32,
        head_dim=128,
        vocab_size=32000,
        page_size=16,
        dtype="float16",
        kv_dtype="float16",
    ),
    intermediate_size=11008,
    source="meta-llama/Llama-2-7b-hf, config.json: intermediate_size 11008",
)
LLAMA_31_8B = Model(
    shape=ModelShape(
        name="Llama-3.1-8B",
        layers=32,
        hidden_size=4096,
        heads=32,
        kv_heads=8,
        head_dim=128,
        vocab_size=128256,
        page_size=16,
        dtype="bfloat16",
        kv_dtype="bfloat16",
    ),
    intermediate_size=14336,
    source="meta-llama/Llama-3.1-8B, config.json: intermediate_size 14336",
)
SMOLLM2 = ModelShape(
    name="SmolLM2-135M",
    layers=30,
    hidden_size=576,
    heads=9,
    kv_heads=3,
    head_dim=64,
    vocab_size=49152,
    page_size=16,
    dtype="bfloat16",
    kv_dtype="bfloat16",
)


def main() -> None:
    """Write them all."""
    FOLDER.mkdir(exist_ok=True)
    for name, profile in profiles().items():
        (FOLDER / name).write_bytes(encode_profile(profile))
        print(FOLDER / name)


def profiles() -> dict[str, Profile]:
    """Each by the name of its file."""
    return {
        "t4-llama-2-7b-fp16.json": published(T4, LLAMA_2_7B),
        "a10-llama-3.1-8b-bf16.json": published(A10, LLAMA_31_8B),
        "emulated-small.json": emulated_small(),
    }


def published(accelerator: Accelerator, model: Model) -> Profile:
    """From datasheet figures."""
    bandwidth = accelerator.bandwidth * BANDWIDTH_SHARE
    arithmetic = accelerator.arithmetic * ARITHMETIC_SHARE

    def product(weights: int) -> RowTimes:
        return over_rows(lambda rows: max(weights * HALF / bandwidth, 2 * weights * rows / arithmetic))

    def decode(_rows: int, tokens: int) -> float:
        return KERNEL_START + tokens * model.kv_bytes / bandwidth

    def prefill(rows: int, context: int) -> float:
        operations = model.pair_operations * pairs(rows, context)
        read = (rows + context) * model.kv_bytes / bandwidth
        return KERNEL_START + max(read, operations / (accelerator.arithmetic * ATTENTION_SHARE))

    def host(_rows: int, tokens: int) -> float:
        return HOST_LATENCY + tokens * model.kv_bytes / HOST_BANDWIDTH

    bus = CopyTimes(latency=COPY_LATENCY, bytes_per_second=accelerator.bus * BUS_SHARE)
    return Profile(
        format=FORMAT,
        provenance=Provenance(
            source="published",
            date=DATE,
            accelerator=accelerator.name,
            host=f"any whose decode attention reads {HOST_BANDWIDTH / 1e9:.0f} GB/s of keys and values",
            versions={},
            spread=None,
            assumptions=assumptions(accelerator, model),
        ),
        model=model.shape,
        accelerator=AcceleratorTimes(
            dense=product(model.layer_weights),
            entry_share=rounded(model.attention_weights_before / model.layer_weights),
            head=product(model.head_weights),
            decode=over_both(DECODE_ROWS, DECODE_TOKENS, decode),
            prefill=over_both(PREFILL_ROWS, CONTEXTS, prefill),
            host_prefill=None,
            download=bus,
            upload=bus,
            launch=LAUNCH,
            overhead=OVERHEAD,
        ),
        host_attention=over_both(DECODE_ROWS, DECODE_TOKENS, host),
    )


def assumptions(accelerator: Accelerator, model: Model) -> tuple[str, ...]:
    """What the times of a published profile follow from."""
    return (
        f"Hardware: {accelerator.source}.",
        f"Model: {model.source}; {model.layer_weights:,} weights a layer and {model.head_weights:,} in the "
        "vocabulary projection, 2 bytes each; norms, rotary embedding and token embedding take no time.",
        f"{BANDWIDTH_SHARE:.0%} of the memory bandwidth is reached (assumed; typical of large reads).",
        f"Dense products reach {ARITHMETIC_SHARE:.0%} of the peak arithmetic, prefill attention "
        f"{ATTENTION_SHARE:.0%} (assumed; power and clock limits included).",
        "A stage takes the longer of reading its weights, or keys and values, once, and its arithmetic: 2 "
        "operations a weight and row, 4 a query head element and pair of tokens; activations count nothing.",
        "Decode attention depends on the tokens attended to only, not on how many rows they are spread over.",
        f"Starting an attention kernel takes {KERNEL_START * 1e6:.0f} us (assumed).",
        "Prefill over host pages reads the context's keys and values across the bus and writes the chunk's, "
        "neither hidden behind arithmetic.",
        f"Copies take {COPY_LATENCY * 1e6:.0f} us and reach {BUS_SHARE:.0%} of the bus from pinned memory "
        "(assumed), in both directions at once.",
        f"Handing over an operation takes {LAUNCH * 1e6:.0f} us, an iteration {OVERHEAD * 1e3:.0f} ms beside "
        "its operations (assumed for a scheduler in Python).",
        f"The CPU's decode attention reads {HOST_BANDWIDTH / 1e9:.0f} GB/s in fact (assumed, the case of "
        f"docs/overlap-planner.md) and takes {HOST_LATENCY * 1e6:.0f} us to begin.",
    )


def emulated_small() -> Profile:
    """An accelerator with little memory, slow enough to be emulated on two cores with SmolLM2-135M."""
    kv_bytes = 2 * SMOLLM2.kv_heads * SMOLLM2.head_dim * HALF
    bus = CopyTimes(latency=10e-6, bytes_per_second=10e9)

    def flat_then_linear(rows: int) -> float:
        return 1e-3 + max(0, rows - 32) * 3e-3 / (512 - 32)

    def prefill(rows: int, context: int) -> float:
        operations = 4 * SMOLLM2.heads * SMOLLM2.head_dim * pairs(rows, context)
        return 50e-6 + operations / 2e12

    return Profile(
        format=FORMAT,
        provenance=Provenance(
            source="made up for emulation",
            date=DATE,
            accelerator="none: an emulated one",
            host=None,
            versions={},
            spread=None,
            assumptions=(
                "Dense work of a layer, and the head, take 1 ms up to 32 rows, then 6.25 us a row more.",
                "Decode attention takes 0.05 ms and reads 16 bit keys and values at 100 GB/s; prefill "
                "attention takes 0.05 ms and does 2e12 operations a second.",
                "Copies take 10 us and go at 10 GB/s; handing over an operation takes 0.2 ms, an iteration "
                "1 ms beside its operations.",
                "A third of a layer's dense time comes before its attention.",
                "Attention on the CPU is not emulated: it is measured where the emulation runs.",
            ),
        ),
        model=SMOLLM2,
        accelerator=AcceleratorTimes(
            dense=over_rows(flat_then_linear),
            entry_share=rounded(1 / 3),
            head=over_rows(flat_then_linear),
            decode=over_both(
                DECODE_ROWS, DECODE_TOKENS, lambda _rows, tokens: 50e-6 + tokens * kv_bytes / 100e9
            ),
            prefill=over_both(PREFILL_ROWS, CONTEXTS, prefill),
            host_prefill=None,
            download=bus,
            upload=bus,
            launch=200e-6,
            overhead=1e-3,
        ),
        host_attention=None,
    )


def over_rows(seconds: Callable[[int], float]) -> RowTimes:
    """A table over ``ROWS``."""
    return RowTimes(rows=ROWS, seconds=tuple(rounded(seconds(rows)) for rows in ROWS))


def over_both(
    rows: tuple[int, ...], tokens: tuple[int, ...], seconds: Callable[[int, int], float]
) -> AttentionTimes:
    """A table over both."""
    table = tuple(tuple(rounded(seconds(one, other)) for other in tokens) for one in rows)
    return AttentionTimes(rows=rows, tokens=tokens, seconds=table)


def pairs(rows: int, context: int) -> float:
    """Pairs of a chunk's tokens and the tokens they attend to: all before the chunk, half of it."""
    return rows * (context + (rows + 1) / 2)


def rounded(value: float) -> float:
    """To four digits: more would claim too much."""
    return float(f"{value:.4g}")


if __name__ == "__main__":
    main()
