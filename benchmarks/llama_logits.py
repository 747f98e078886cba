"""llama.cpp's logits after each token of a text, for ``benchmarks.weight_formats`` to compare.

It needs llama-cpp-python, in an environment of its own as ``benchmarks.llama_attention`` has it:

    LLAMA/bin/python -m benchmarks.llama_logits MODEL.gguf tokens.npy logits.npy
"""

from __future__ import annotations

import sys
from importlib import import_module
from pathlib import Path

import numpy as np

CHUNK, DECODED = 90, 20
"""As the text goes through Tandem: chunks of a prompt, then the last tokens one by one."""


def main() -> int:
    """Read token ids, write float32 [tokens, vocab]."""
    llama_cpp = import_module("llama_cpp")
    model, tokens_path, logits_path = sys.argv[1:]
    tokens = np.load(tokens_path).tolist()
    llama = llama_cpp.Llama(
        model, n_ctx=len(tokens), n_batch=CHUNK, n_ubatch=CHUNK, logits_all=True, verbose=False
    )
    end = len(tokens) - DECODED
    for first in range(0, end, CHUNK):
        llama.eval(tokens[first : min(first + CHUNK, end)])
    for token in tokens[end:]:
        llama.eval([token])
    np.save(Path(logits_path), llama.scores[: len(tokens)].astype(np.float32))
    return 0


if __name__ == "__main__":
    sys.exit(main())
