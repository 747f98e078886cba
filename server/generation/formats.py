"""Pieces of text as OpenAI's JSON: chat completions and completions, streamed or whole.

Built as plain dictionaries for msgspec: this runs for every token of every stream.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol

from scheduler.types import FinishReason, TokenLogprobs
from server.generation.job import GenerationJob
from server.generation.running import ChoiceDelta, Usage
from server.text.tokenizer import TokenTable

Json = dict[str, Any]


class Format(Protocol):
    """One endpoint's way to write answers."""

    def envelope(self, *, chunk: bool) -> Json:
        """The keys of a response, or of every chunk of a stream, but for choices and usage."""

    def chunk_choices(self, delta: ChoiceDelta) -> list[Json]:
        """A delta as entries of ``choices``, each for a chunk of its own, in order."""

    def choice(self, index: int, deltas: Sequence[ChoiceDelta]) -> Json:
        """All deltas of one choice as the entry of ``choices`` in a whole response."""


class ChatFormat:
    """POST /v1/chat/completions."""

    def __init__(self, job: GenerationJob, tokens: TokenTable) -> None:
        self._job = job
        self._tokens = tokens
        self._begun: set[int] = set()

    def envelope(self, *, chunk: bool) -> Json:
        """Keys of OpenAI's chat.completion and chat.completion.chunk objects."""
        kind = "chat.completion.chunk" if chunk else "chat.completion"
        return {**_envelope(self._job, kind), "service_tier": "default"}

    def chunk_choices(self, delta: ChoiceDelta) -> list[Json]:
        """Role first, with the choice's first token; the finish reason comes alone."""
        entries = []
        if delta.index not in self._begun:
            self._begun.add(delta.index)
            entries.append(_chunk(delta.index, {"role": "assistant", "content": ""}))
        if delta.text or delta.logprobs:
            entries.append(_chunk(delta.index, {"content": delta.text}, self._logprobs([delta])))
        if delta.finish_reason is not None:
            entries.append(_chunk(delta.index, {}, None, delta.finish_reason))
        return entries

    def choice(self, index: int, deltas: Sequence[ChoiceDelta]) -> Json:
        """A choice with its message."""
        content = "".join([delta.text for delta in deltas])
        return {
            "index": index,
            "message": {"role": "assistant", "content": content, "refusal": None},
            "logprobs": self._logprobs(deltas),
            "finish_reason": deltas[-1].finish_reason,
        }

    def _logprobs(self, deltas: Sequence[ChoiceDelta]) -> Json | None:
        if self._job.logprobs is None:
            return None
        entries = [self._entry(entry) for delta in deltas for entry in delta.logprobs]
        return {"content": entries, "refusal": None}

    def _entry(self, entry: TokenLogprobs) -> Json:
        likeliest = [self._token(*token) for token in entry.top]
        return {**self._token(entry.token_id, entry.logprob), "top_logprobs": likeliest}

    def _token(self, token_id: int, logprob: float) -> Json:
        data = self._tokens.token_bytes(token_id)
        text = data.decode(errors="backslashreplace")
        return {"token": text, "logprob": logprob, "bytes": list(data)}


class CompletionFormat:
    """POST /v1/completions."""

    def __init__(self, job: GenerationJob, tokens: TokenTable) -> None:
        self._job = job
        self._tokens = tokens

    def envelope(self, *, chunk: bool) -> Json:
        """Keys of OpenAI's text_completion object, the same for chunks."""
        return _envelope(self._job, "text_completion")

    def chunk_choices(self, delta: ChoiceDelta) -> list[Json]:
        """Text, then the finish reason alone."""
        entries = []
        if delta.text or delta.logprobs:
            entries.append(self._choice(delta.index, [delta], None))
        if delta.finish_reason is not None:
            entries.append(self._choice(delta.index, [], delta.finish_reason))
        return entries

    def choice(self, index: int, deltas: Sequence[ChoiceDelta]) -> Json:
        """A choice with its text."""
        return self._choice(index, deltas, deltas[-1].finish_reason)

    def _choice(self, index: int, deltas: Sequence[ChoiceDelta], reason: FinishReason | None) -> Json:
        return {
            "index": index,
            "text": "".join([delta.text for delta in deltas]),
            "logprobs": self._logprobs(deltas),
            "finish_reason": reason,
        }

    def _logprobs(self, deltas: Sequence[ChoiceDelta]) -> Json | None:
        if self._job.logprobs is None or not deltas:
            return None
        entries = [entry for delta in deltas for entry in delta.logprobs]
        return {
            "tokens": [self._text(entry.token_id) for entry in entries],
            "token_logprobs": [entry.logprob for entry in entries],
            "top_logprobs": [self._likeliest(entry) for entry in entries],
            "text_offset": [offset for delta in deltas for offset in delta.text_offsets],
        }

    def _likeliest(self, entry: TokenLogprobs) -> dict[str, float]:
        """The sampled token is always among them."""
        likeliest = {self._text(token_id): logprob for token_id, logprob in entry.top}
        return {self._text(entry.token_id): entry.logprob} | likeliest

    def _text(self, token_id: int) -> str:
        """A token's text; one that is no UTF-8 by itself as OpenAI writes it, ``bytes:\\xf0\\x9f``."""
        data = self._tokens.token_bytes(token_id)
        try:
            return data.decode()
        except UnicodeDecodeError:
            return "bytes:" + "".join(f"\\x{byte:02x}" for byte in data)


def usage_json(usage: Usage) -> Json:
    """OpenAI's usage object."""
    return {
        "prompt_tokens": usage.prompt_tokens,
        "completion_tokens": usage.completion_tokens,
        "total_tokens": usage.prompt_tokens + usage.completion_tokens,
        "prompt_tokens_details": {"cached_tokens": usage.cached_tokens},
        "completion_tokens_details": {"reasoning_tokens": 0},
    }


def _envelope(job: GenerationJob, kind: str) -> Json:
    return {
        "id": job.response_id,
        "object": kind,
        "created": job.created,
        "model": job.model,
        "system_fingerprint": job.system_fingerprint,
    }


def _chunk(
    index: int, delta: Json, logprobs: Json | None = None, finish_reason: FinishReason | None = None
) -> Json:
    return {"index": index, "delta": delta, "logprobs": logprobs, "finish_reason": finish_reason}
