"""Native products with packed weights against what the machine can do, and torch.

python -m benchmarks.dense
python -m benchmarks.dense --threads 1 --formats Q4_0,BF16 --rows 1,64

All linear maps of SmolLM2-135M's layers, one after the other, from float32 activations to float32 outputs:
a time is that of all of them. They are more than the L2 caches hold, and the ways that are compared take
turns, so that they push each other out of the last level too. torch's ways are bfloat16 packed for oneDNN and
float32 ``F.linear``.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import torch
from gguf.constants import GGML_QUANT_SIZES, GGMLQuantizationType
from torch import Tensor

from benchmarks.attention import Machine, in_turns, probe, quietly
from benchmarks.machine import as_in_the_engine, description
from engine.kernels import _native
from engine.kernels.loader import Kernels, load_kernels
from engine.models.layers import DenseLinear, LinearMap, PackedLinear, packing_helps

LAYERS = 30
SHAPES = ((960, 576), (576, 576), (3072, 576), (576, 1536))
"""Outputs and inputs: query, key and value; attention's output; gate and up; down."""
SUPER_SHAPES = ((960, 512), (576, 512), (3072, 512), (576, 1536))
"""The same for formats in super-blocks of 256."""
PARAMETERS = LAYERS * sum(outputs * inputs for outputs, inputs in SHAPES)


@dataclass(frozen=True, slots=True)
class Native:
    """The layers in one format."""

    matrices: list[_native.Matrix]
    prepared: _native.PreparedRows
    kernels: Kernels

    @property
    def weight_bytes(self) -> int:
        return sum(matrix.bytes for matrix in self.matrices)

    @property
    def parameters(self) -> int:
        return sum(matrix.outputs * matrix.inputs for matrix in self.matrices)

    def call(self, rows: int) -> Callable[[], object]:
        """Multiplies all of them."""
        x = torch.randn(rows, max(matrix.inputs for matrix in self.matrices))
        out = torch.empty(rows, max(matrix.outputs for matrix in self.matrices))

        def multiply() -> None:
            for matrix in self.matrices:
                matrix.apply(
                    self.prepared,
                    x.data_ptr(),
                    rows,
                    x.stride(0),
                    out.data_ptr(),
                    out.stride(0),
                    0,
                    self.kernels.pool,
                )

        return multiply


def native(name: str, kernels: Kernels) -> Native:
    """Weights with plausible scales; how long a product takes does not depend on them."""
    format = GGMLQuantizationType[name]
    elements, size = GGML_QUANT_SIZES[format]
    random = np.random.default_rng(0)
    matrices = []
    for outputs, inputs in LAYERS * (SUPER_SHAPES if elements == 256 else SHAPES):
        # As upper bytes of float16, bfloat16 and float32 they are small numbers.
        data = random.integers(
            0 if elements > 1 else 0x20, 0x2F, outputs * inputs // elements * size, np.uint8
        )
        source = (int(format), outputs, data.__array_interface__["data"][0], 0)
        matrices.append(_native.Matrix(inputs, [source], kernels.instruction_set, kernels.pool))
    return Native(matrices, _native.PreparedRows(kernels.instruction_set), kernels)


def by_torch(layers: list[tuple[LinearMap, int]], rows: int, dtype: torch.dtype) -> Callable[[], object]:
    """Multiplies all ``layers``, which come with their inputs."""
    xs = {inputs: torch.randn(rows, inputs).to(dtype) for _, inputs in layers}

    def multiply() -> None:
        for linear, inputs in layers:
            linear(xs[inputs])

    return multiply


def torch_layers(make: Callable[[Tensor], LinearMap], dtype: torch.dtype) -> list[tuple[LinearMap, int]]:
    return [(make(torch.randn(shape).to(dtype)), shape[1]) for shape in LAYERS * SHAPES]


@dataclass(frozen=True, slots=True)
class Rivals:
    """torch's layers."""

    bf16: list[tuple[LinearMap, int]]
    fp32: list[tuple[LinearMap, int]]

    @classmethod
    def make(cls) -> Rivals:
        packed = PackedLinear if packing_helps(torch.bfloat16) else DenseLinear
        return cls(torch_layers(packed, torch.bfloat16), torch_layers(DenseLinear, torch.float32))


def measure(
    weights: dict[str, Native], rivals: Rivals, rows: int, machine: Machine, seconds: float
) -> list[str]:
    """Rows of the table, one for each format."""
    calls = [by_torch(rivals.bf16, rows, torch.bfloat16), by_torch(rivals.fp32, rows, torch.float32)]
    calls += [each.call(rows) for each in weights.values()]
    with torch.inference_mode():
        (bf16, fp32, *taken), others = quietly(lambda: in_turns(calls, seconds))
    lines = []
    for (name, each), mine in zip(weights.items(), taken, strict=True):
        share = each.parameters / PARAMETERS
        rate = each.weight_bytes / mine
        lines.append(
            f"| {name} | {rows} | {mine * 1e3:.2f} | {rate / 1e9:.1f} | "
            f"{rate / machine.bytes_a_second:.0%} | {2 * each.parameters * rows / mine / 1e9:.0f} | "
            f"{bf16 * share / mine:.1f} | {fp32 * share / mine:.1f} | {others:.0%} |"
        )
    return lines


def main() -> int:
    """Measure and print a table for each number of threads."""
    as_in_the_engine("benchmarks.dense")
    options = _parser().parse_args()
    print(f"Machine: {description('torch')}")
    print(f"Repeat: python -m benchmarks.dense {' '.join(sys.argv[1:])}")
    with torch.inference_mode():
        rivals = Rivals.make()
    for threads in map(int, options.threads.split(",")):
        kernels = load_kernels(options.cpu_kernels, threads)
        if kernels is None:
            print("there are no native kernels", file=sys.stderr)
            return 1
        machine = probe(kernels)
        print(
            f"\n{threads} threads, {kernels.instruction_set}: reads {machine.bytes_a_second / 1e9:.1f} GB/s, "
            f"float32 product {machine.operations_a_second / 1e9:.0f} GFLOP/s\n\n"
            "| weights | rows | ms | GB/s | share of reading | GFLOP/s | torch bfloat16 / native | "
            "torch float32 / native | others' CPU |\n" + "|---" * 9 + "|"
        )
        weights = {name: native(name, kernels) for name in options.formats.split(",")}
        for rows in map(int, options.rows.split(",")):
            print("\n".join(measure(weights, rivals, rows, machine, options.seconds)), flush=True)
    return 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.dense", allow_abbrev=False)
    add = parser.add_argument
    add("--threads", default="1,2", help="default: %(default)s")
    add("--formats", default="Q8_0,Q4_0,Q4_1,Q4_K,Q6_K,BF16,F32", help="default: %(default)s")
    add("--rows", default="1,4,16,64,512", help="default: %(default)s")
    add("--cpu-kernels", default="auto", help="default: %(default)s")
    add("--seconds", type=float, default=0.5, help="for each way of each case (default: %(default)s)")
    return parser


if __name__ == "__main__":
    sys.exit(main())
