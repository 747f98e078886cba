"""The vocabulary shared by server, scheduler and engine: requests and what becomes of them.

Every type is a frozen value that crosses the process border as MessagePack.
"""

from __future__ import annotations

import enum
from typing import NewType

import msgspec

from scheduler.tier import Tier

RequestId = NewType("RequestId", str)
"""Chosen by the server, unique among its live requests."""

SequenceId = NewType("SequenceId", int)
"""Chosen by the scheduler, never reused within an engine process."""

TokenId = int


class FinishReason(enum.StrEnum):
    """Why a sequence ended."""

    STOP = "stop"
    """The model produced an end-of-sequence or stop token."""
    LENGTH = "length"
    """``max_tokens`` or the context length was reached."""
    ABORT = "abort"
    """The client or the server withdrew it."""
    ERROR = "error"
    """The engine could not finish it; ``ChoiceOutput.error`` says why."""


class SamplingParams(msgspec.Struct, frozen=True, kw_only=True):
    """How the next token is chosen. Validated at the HTTP edge; defaults are OpenAI's.

    The random stream of a choice is keyed by (``seed``, choice index, output position), so the
    same request gives the same tokens whatever else is in the batch.
    """

    max_tokens: int
    """Output tokens allowed, at least 1."""
    temperature: float = 1.0
    """0 means greedy: the highest logit, ties to the lowest id."""
    top_k: int = 0
    """0 means off."""
    top_p: float = 1.0
    """Smallest set with mass >= top_p; always keeps at least one token."""
    min_p: float = 0.0
    """Drop tokens whose probability is below min_p times the highest one."""
    seed: int
    """The server draws one when the client gives none."""
    repetition_penalty: float = 1.0
    """Over prompt and output (CTRL, arXiv 1909.05858): divide positive logits, multiply negative."""
    presence_penalty: float = 0.0
    """Subtracted once for each distinct token of the output."""
    frequency_penalty: float = 0.0
    """Subtracted for each occurrence in the output."""
    logit_bias: dict[int, float] = {}
    """Added to raw logits, by token id."""
    logprobs: int | None = None
    """None: no logprobs. n >= 0: the sampled token's logprob and the n most likely tokens."""
    prompt_logprobs: int | None = None
    """The same for the tokens of the prompt but the first, with the first token of choice 0."""
    stop_token_ids: tuple[int, ...] = ()
    """End the sequence like end-of-sequence does, also with ``ignore_eos``."""
    ignore_eos: bool = False
    min_tokens: int = 0
    """End-of-sequence and stop tokens are banned before this many output tokens."""

    @property
    def needs_history(self) -> bool:
        """Whether sampling must see the tokens so far."""
        return self.repetition_penalty != 1.0 or self.presence_penalty != 0.0 or self.frequency_penalty != 0.0


class Request(msgspec.Struct, frozen=True, kw_only=True):
    """One prompt and ``n`` choices to generate from it."""

    request_id: RequestId
    prompt_token_ids: tuple[int, ...]
    """At least one, each below the vocabulary size, fewer than the context length."""
    sampling: SamplingParams
    n: int = 1
    priority: int = 0
    """Lower is served first; equal priorities go by arrival."""
    cache_salt: str = ""
    """Prefix pages are shared only between requests with the same salt."""


class TokenLogprobs(msgspec.Struct, frozen=True, array_like=True):
    """Log-probabilities of one token under the raw logits (before penalties, temperature)."""

    token_id: int
    logprob: float
    """Natural logarithm, finite, at least -9999.0."""
    top: tuple[tuple[int, float], ...]
    """The requested number of most likely (token id, logprob), most likely first."""


class ChoiceOutput(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What one iteration added to one choice of a request.

    The first of a choice may have no tokens: it tells that a long prompt is being computed.
    """

    request_id: RequestId
    index: int
    """Choice index, 0 <= index < n."""
    token_ids: tuple[int, ...] = ()
    """New tokens, a final end-of-sequence or stop token included."""
    logprobs: tuple[TokenLogprobs, ...] = ()
    """One for each new token if the request asked for them, else empty."""
    prompt_logprobs: tuple[TokenLogprobs, ...] = ()
    """One for each token of the prompt but the first, if asked for; beside choice 0's first token."""
    finish_reason: FinishReason | None = None
    """Set exactly once for each choice, in its last output."""
    cached_tokens: int = 0
    """Prompt tokens found in the prefix cache; set in the choice's first output."""
    scheduled_at: float | None = None
    """When the choice was first given a place, on the machine's monotonic clock; set in its first output."""
    tier: Tier | None = None
    """Where the sequence was when the new token was computed; None without a token or an accelerator."""
    error: str = ""
