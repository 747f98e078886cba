"""The sampling pipeline again, in plain Python and in the words of the contract: the oracle."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from itertools import accumulate

from scheduler.plan import SampleSpec

_MASK = (1 << 64) - 1


def philox_4x64_10(counter: Sequence[int], key: Sequence[int]) -> tuple[int, ...]:
    """Salmon et al., "Parallel random numbers: as easy as 1, 2, 3", SC 2011."""
    c0, c1, c2, c3 = counter
    k0, k1 = key
    for _ in range(10):
        high0, low0 = divmod(0xD2E7470EE14C6C93 * c0, 1 << 64)
        high1, low1 = divmod(0xCA5A826395121157 * c2, 1 << 64)
        c0, c1, c2, c3 = high1 ^ c1 ^ k0, low1, high0 ^ c3 ^ k1, low0
        k0, k1 = (k0 + 0x9E3779B97F4A7C15) & _MASK, (k1 + 0xBB67AE8584CAA73B) & _MASK
    return c0, c1, c2, c3


def uniform(seed: int, choice: int, position: int) -> float:
    return (philox_4x64_10((1, position, 0, 0), (seed & _MASK, choice))[0] >> 11) / (1 << 53)


def processed_logits(raw: Sequence[float], spec: SampleSpec, eos: Sequence[int]) -> list[float]:
    params = spec.params
    logits = [x + params.logit_bias.get(token, 0.0) for token, x in enumerate(raw)]
    if spec.output_length < params.min_tokens:
        for token in [*params.stop_token_ids, *([] if params.ignore_eos else eos)]:
            logits[token] = -math.inf
    history = spec.history or ()
    for token in set(history):
        penalty = params.repetition_penalty
        logits[token] = logits[token] / penalty if logits[token] > 0 else logits[token] * penalty
    for token, count in Counter(history[spec.prompt_length :]).items():
        logits[token] -= params.presence_penalty + params.frequency_penalty * count
    return logits


def kept_weights(logits: Sequence[float], spec: SampleSpec, top_p: float) -> dict[int, float]:
    """Weights, by id, of the tokens that may be drawn (temperature > 0)."""
    params = spec.params
    highest = max(logits)
    weights = [math.exp((x - highest) / params.temperature) for x in logits]
    ranked = sorted(range(len(logits)), key=lambda token: (-logits[token], token))
    if params.top_k > 0:
        ranked = ranked[: params.top_k]
    if params.top_p < 1:
        mass = math.fsum(weights[token] for token in ranked)
        cumulated = list(accumulate(weights[token] for token in ranked))
        enough = [i for i, cumulative in enumerate(cumulated) if cumulative >= top_p * mass]
        ranked = ranked[: enough[0] + 1] if enough else ranked
    ranked = [token for token in ranked if weights[token] >= params.min_p * weights[ranked[0]]]
    return {token: weights[token] for token in sorted(ranked)}


def inverse_cdf(weights: dict[int, float], u: float) -> int:
    target = u * math.fsum(weights.values())
    cumulated = 0.0
    for token, weight in weights.items():
        cumulated += weight
        if cumulated > target:
            return token
    return max(token for token, weight in weights.items() if weight > 0)


def acceptable_tokens(raw: Sequence[float], spec: SampleSpec, eos: Sequence[int]) -> set[int]:
    """The right token; more than one only where a sum within 1e-12 of a border decides."""
    logits = processed_logits(raw, spec, eos)
    if spec.params.temperature == 0:
        return {logits.index(max(logits))}
    u = uniform(spec.params.seed, spec.choice, spec.output_length)
    return {
        inverse_cdf(kept_weights(logits, spec, spec.params.top_p * (1 + p_error)), u * (1 + u_error))
        for p_error in (-1e-12, 0.0, 1e-12)
        for u_error in (-1e-12, 0.0, 1e-12)
    }


def log_softmax(raw: Sequence[float]) -> list[float]:
    highest = max(raw)
    normaliser = highest + math.log(math.fsum(math.exp(x - highest) for x in raw))
    return [max(x - normaliser, -9999.0) for x in raw]
