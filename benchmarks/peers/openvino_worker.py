"""Process in which OpenVINO GenAI runs: reads loads, writes when each token came, one JSON line each.

    PYTHON openvino_worker.py MODEL STREAMS CONTEXT

It runs in OpenVINO's own environment, so it knows nothing of Tandem.
"""

from __future__ import annotations

import json
import random
import sys
import time
from typing import Any

import numpy as np
import openvino as ov
import openvino_genai as genai


def load(model: str, streams: int, context: int) -> genai.ContinuousBatchingPipeline:
    """The pipeline, with pages for that many streams of that many tokens."""
    scheduler = genai.SchedulerConfig()
    scheduler.max_num_seqs = streams
    scheduler.num_kv_blocks = -(-streams * context // 32) + 64
    scheduler.max_num_batched_tokens = 512
    scheduler.enable_prefix_caching = False
    return genai.ContinuousBatchingPipeline(model, scheduler, "CPU", {})


def measure(
    pipeline: genai.ContinuousBatchingPipeline, job: dict[str, int], first_id: int
) -> list[dict[str, Any]]:
    """Greedy answers of exactly the wanted length to random token ids, all at once."""
    config = genai.GenerationConfig()
    config.max_new_tokens = config.min_new_tokens = job["output_tokens"]
    config.ignore_eos = True
    config.do_sample = False
    rng = random.Random(job["seed"])
    prompts = [
        ov.Tensor(np.array([rng.choices(range(job["vocabulary"]), k=job["prompt_tokens"])], dtype=np.int64))
        for _ in range(job["streams"])
    ]
    started = time.perf_counter()
    handles = [pipeline.add_request(first_id + i, prompt, config) for i, prompt in enumerate(prompts)]
    frames: list[list[tuple[float, int]]] = [[] for _ in handles]
    while pipeline.has_non_finished_requests():
        pipeline.step()
        now = time.perf_counter()
        for handle, seen in zip(handles, frames, strict=True):
            if handle.can_read():
                tokens = sum(len(output.generated_ids) for output in handle.read().values())
                if tokens:
                    seen.append((now, tokens))
    return [{"started": started, "frames": seen} for seen in frames]


def main() -> None:
    """Load, say so, then work until standard input ends."""
    model, streams, context = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
    pipeline = load(model, streams, context)
    print("ready", flush=True)
    first_id = 0
    for line in sys.stdin:
        job = json.loads(line)
        print(json.dumps(measure(pipeline, job, first_id)), flush=True)
        first_id += job["streams"]


if __name__ == "__main__":
    main()
