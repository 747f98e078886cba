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

    def beside_choices(self, begin: ChoiceDelta) -> Json:
        """More keys of the response, or of the chunk, with a first delta, which is about the prompt."""


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
        if delta.text or delta.logprobs or delta.token_ids:
            entries.append(_chunk(delta.index, {"content": delta.text}, self._logprobs([delta])))
            if self._job.return_token_ids:
                entries[-1]["token_ids"] = delta.token_ids
        if delta.finish_reason is not None:
            entries.append(_chunk(delta.index, {}, None, delta.finish_reason))
        return entries

    def choice(self, index: int, deltas: Sequence[ChoiceDelta]) -> Json:
        """A choice with its message."""
        content = "".join([delta.text for delta in deltas])
        choice = {
            "index": index,
            "message": {"role": "assistant", "content": content, "refusal": None},
            "logprobs": self._logprobs(deltas),
            "finish_reason": deltas[-1].finish_reason,
        }
        if self._job.return_token_ids:
            choice["token_ids"] = _token_ids(deltas)
        return choice

    def beside_choices(self, begin: ChoiceDelta) -> Json:
        """There is one prompt for all choices."""
        return about_prompt(self._job, 0, begin, self._tokens) if begin.index == 0 else {}

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
        if delta.text or delta.logprobs or delta.token_ids or self._begins(delta):
            entries.append(self._choice(delta.index, [delta], None))
        if delta.finish_reason is not None:
            entries.append(self._choice(delta.index, [], delta.finish_reason))
        return entries

    def choice(self, index: int, deltas: Sequence[ChoiceDelta]) -> Json:
        """A choice with its text."""
        return self._choice(index, deltas, deltas[-1].finish_reason)

    def beside_choices(self, begin: ChoiceDelta) -> Json:
        """Each choice has its prompt's."""
        return {}

    def _begins(self, delta: ChoiceDelta) -> bool:
        return delta.prompt is not None and self._job.return_token_ids

    def _choice(self, index: int, deltas: Sequence[ChoiceDelta], reason: FinishReason | None) -> Json:
        choice = {
            "index": index,
            "text": "".join([delta.text for delta in deltas]),
            "logprobs": self._logprobs(deltas),
            "finish_reason": reason,
        }
        if self._job.shows_prompt:
            if deltas and deltas[0].prompt is not None:
                choice |= about_prompt(self._job, index // self._job.n, deltas[0], self._tokens)
            if self._job.return_token_ids:
                choice["token_ids"] = _token_ids(deltas)
        return choice

    def _logprobs(self, deltas: Sequence[ChoiceDelta]) -> Json | None:
        if self._job.logprobs is None or not deltas:
            return None
        entries = [entry for delta in deltas for entry in delta.logprobs]
        logprobs: list[float | None] = [entry.logprob for entry in entries]
        likeliest: list[dict[str, float] | None] = [self._likeliest(entry) for entry in entries]
        if deltas[0].prompt is not None and deltas[0].logprobs:
            logprobs[0] = likeliest[0] = None  # nothing comes before a prompt's first token
        return {
            "tokens": [self._text(entry.token_id) for entry in entries],
            "token_logprobs": logprobs,
            "top_logprobs": likeliest,
            "text_offset": [offset for delta in deltas for offset in delta.text_offsets],
        }

    def _likeliest(self, entry: TokenLogprobs) -> dict[str, float]:
        """The sampled token is always among them."""
        top = entry.top[: self._job.logprobs]
        likeliest = {self._text(token_id): logprob for token_id, logprob in top}
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


def about_prompt(job: GenerationJob, prompt: int, begin: ChoiceDelta, tokens: TokenTable) -> Json:
    """Extensions as vLLM writes them, so far as they were asked for."""
    keys: Json = {}
    if job.return_token_ids:
        keys["prompt_token_ids"] = job.requests[prompt].prompt_token_ids
    if job.prompt_logprobs is not None:
        scores = begin.prompt or ()
        keys["prompt_logprobs"] = [None, *(_ranked(entry, job.prompt_logprobs, tokens) for entry in scores)]
    return keys


def _ranked(entry: TokenLogprobs, count: int, tokens: TokenTable) -> Json:
    """By token id; the rank of the prompt's own token is known only if it is among the likeliest."""
    ranks = {token_id: rank for rank, (token_id, _) in enumerate(entry.top, 1)}
    return {
        str(token_id): {
            "logprob": logprob,
            "rank": ranks.get(token_id),
            "decoded_token": tokens.token_bytes(token_id).decode(errors="replace"),
        }
        for token_id, logprob in ((entry.token_id, entry.logprob), *entry.top[:count])
    }


def _token_ids(deltas: Sequence[ChoiceDelta]) -> list[int]:
    return [token_id for delta in deltas for token_id in delta.token_ids]


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
