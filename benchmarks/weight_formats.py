"""What SmolLM2's packed weights lose, here and in llama.cpp: both from the dequantised weights in float32.

python -m benchmarks.weight_formats --write-tokens tokens.npy
LLAMA/bin/python -m benchmarks.llama_logits MODEL.gguf tokens.npy logits.npy
python -m benchmarks.weight_formats --llama logits.npy
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from engine.kernels.loader import load_kernels
from engine.model_loader import load_model
from engine.precision import Precision
from engine.weights.check import open_checkpoint
from engine.weights.source import resolve
from tests.builders.weight_formats import log_probabilities, loss, text_tokens


def main() -> int:
    """Write the text's tokens, or compare."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.weight_formats", allow_abbrev=False)
    parser.add_argument(
        "--write-tokens", metavar="FILE", type=Path, help="write the text's token ids, and end"
    )
    parser.add_argument("--llama", metavar="FILE", type=Path, help="llama.cpp's logits")
    arguments = parser.parse_args()
    if arguments.write_tokens:
        np.save(arguments.write_tokens, np.array(text_tokens()))
        return 0
    checkpoint = open_checkpoint(resolve("smollm2-135m-instruct"))
    exact = log_probabilities(load_model(checkpoint, torch.float32))
    kernels = load_kernels("auto", torch.get_num_threads())
    matrices = Precision(torch.float32, packed=True).matrices(kernels)
    _show("Tandem", exact, log_probabilities(load_model(checkpoint, torch.float32, make_matrices=matrices)))
    if arguments.llama:
        _show("llama.cpp", exact, torch.from_numpy(np.load(arguments.llama)).log_softmax(-1))
    return 0


def _show(name: str, exact: Tensor, found: Tensor) -> None:
    divergence, agreement = loss(exact, found)
    print(f"{name}: {divergence:.1e} nats, likeliest token the same for {agreement:.1%}")


if __name__ == "__main__":
    sys.exit(main())
