"""The end of JSON: a parsed request against this model, this tokenizer and these limits.

What comes out is typed and complete; nothing behind it checks a client's values again.
"""

from __future__ import annotations

import hashlib
import uuid
from collections.abc import Sequence

import msgspec

from scheduler.messages import EngineFacts
from scheduler.types import Request, RequestId, SamplingParams
from server.engine_client.protocol import EngineState, EngineUnavailable
from server.generation.job import Echo, GenerationJob, TextOptions
from server.generation.prompts import chat_prompt, completion_prompts
from server.http.errors import (
    bad_request,
    context_length_exceeded,
    engine_unavailable,
    model_not_found,
    shorten,
)
from server.schemas.chat import ChatCompletionRequest
from server.schemas.completions import CompletionRequest
from server.schemas.options import GenerationOptions
from server.services import Services
from server.text.tokenizer import TokenTable


def ready_engine(services: Services) -> EngineFacts:
    """The loaded model's facts.

    Raises:
        ApiError: 503, the engine takes no requests now.
    """
    engine = services.engine
    facts = engine.facts
    if engine.state is EngineState.READY and facts is not None:
        return facts
    raise engine_unavailable(EngineUnavailable(engine.state, engine.retry_after_seconds))


async def chat_job(body: ChatCompletionRequest, services: Services) -> GenerationJob:
    """Check a chat request and render and encode its prompt.

    Raises:
        ApiError: 400, 404 for another model, 503 while the model is loaded.
    """
    facts = _check_common(body, services)
    logprobs = body.top_logprobs or 0 if body.logprobs else None
    if body.top_logprobs and not body.logprobs:
        raise bad_request("'top_logprobs' needs 'logprobs' to be true.", "invalid_value", "top_logprobs")
    prompt = await chat_prompt(body, services, facts)
    _check_prompt_length(len(prompt), services, "messages")
    room = facts.context_length - len(prompt)
    wanted = body.max_tokens if body.max_completion_tokens is None else body.max_completion_tokens
    least = int(wanted != 0 or body.prompt_logprobs is not None)
    if room < least:
        raise context_length_exceeded(facts.context_length, len(prompt), least, "messages")
    max_tokens = room if wanted is None else min(wanted, room)
    headers = {"X-Max-Tokens-Clamped": str(room)} if wanted is not None and wanted > room else {}
    salt = [body.cache_salt, body.prompt_cache_key]
    return _job(
        body,
        services,
        facts,
        endpoint="/v1/chat/completions",
        id_prefix="chatcmpl-",
        prompts=[prompt],
        max_tokens=max_tokens,
        logprobs=logprobs,
        cache_salt=msgspec.json.encode(salt).decode() if any(salt) else "",
        continues_text=body.continue_final_message,
        headers=headers,
    )


async def completion_job(body: CompletionRequest, services: Services) -> GenerationJob:
    """Check a completion request and encode its prompts.

    Raises:
        ApiError: 400, 404 for another model, 503 while the model is loaded.
    """
    facts = _check_common(body, services)
    _check_prompt_count(len(body.prompt), body.n, services)
    scores = body.echo and body.logprobs is not None
    prompts = await completion_prompts(body, services, facts)
    for prompt in prompts:
        _check_prompt_length(len(prompt), services, "prompt")
    _check_room(prompts, body, facts, least=int(scores or body.prompt_logprobs is not None))
    return _job(
        body,
        services,
        facts,
        endpoint="/v1/completions",
        id_prefix="cmpl-",
        prompts=prompts,
        max_tokens=body.max_tokens,
        logprobs=body.logprobs,
        cache_salt=msgspec.json.encode([body.cache_salt, ""]).decode() if body.cache_salt else "",
        continues_text=not body.echo,
        echoes=_echoes(body, prompts, services),
        headers={},
    )


def _check_room(
    prompts: Sequence[tuple[int, ...]], body: CompletionRequest, facts: EngineFacts, least: int
) -> None:
    """Completions never clamp. To score a prompt the engine makes ``least`` tokens, even unwanted."""
    output = max(body.max_tokens, least)
    for prompt in prompts:
        if len(prompt) + output > facts.context_length:
            raise context_length_exceeded(facts.context_length, len(prompt), output, "prompt")


def _echoes(
    body: CompletionRequest, prompts: Sequence[tuple[int, ...]], services: Services
) -> tuple[Echo, ...]:
    """The prompts as parts of the answer: what the client sent, without what the tokenizer put around it."""
    if not body.echo:
        return ()
    table = services.tokenizer
    return tuple(
        Echo(ids, _unwritten(given, ids, table) if isinstance(given, str) else frozenset())
        for given, ids in zip(body.prompt, prompts, strict=True)
    )


def _unwritten(text: str, ids: tuple[int, ...], table: TokenTable) -> frozenset[int]:
    written = text.encode()
    special = frozenset(filter(table.is_special, ids))
    return frozenset(token_id for token_id in special if table.token_bytes(token_id) not in written)


def _check_common(body: GenerationOptions, services: Services) -> EngineFacts:
    facts = ready_engine(services)
    if body.model != services.model_name:
        raise model_not_found(body.model)
    if body.stream_options is not None and not body.stream:
        raise bad_request("'stream_options' needs 'stream' to be true.", "invalid_value", "stream_options")
    _check_ids([int(key) for key in body.logit_bias], facts, "logit_bias")
    _check_ids(body.stop_token_ids, facts, "stop_token_ids")
    return facts


def _check_ids(token_ids: Sequence[int], facts: EngineFacts, param: str) -> None:
    if token_ids and max(token_ids) >= facts.vocab_size:
        message = f"'{param}' has token id {shorten(max(token_ids))}, but ids end at {facts.vocab_size - 1}."
        raise bad_request(message, "invalid_value", param)


def _check_prompt_length(tokens: int, services: Services, param: str) -> None:
    limit = services.settings.max_prompt_tokens
    if limit is not None and tokens > limit:
        message = f"The prompt has {tokens} tokens, but this server takes at most {limit}."
        raise bad_request(message, "context_length_exceeded", param)


def _check_prompt_count(prompts: int, n: int, services: Services) -> None:
    """More prompts than can ever run and wait together would be refused whenever they come."""
    settings = services.settings
    limit = -(-settings.max_running // n) + settings.queue_limit
    if prompts > limit:
        message = f"'prompt' has {prompts} prompts, but this server takes at most {limit} at once."
        raise bad_request(message, "array_above_max_length", "prompt")


def _job(
    body: GenerationOptions,
    services: Services,
    facts: EngineFacts,
    *,
    endpoint: str,
    id_prefix: str,
    prompts: Sequence[tuple[int, ...]],
    max_tokens: int,
    logprobs: int | None,
    cache_salt: str,
    continues_text: bool,
    headers: dict[str, str],
    echoes: tuple[Echo, ...] = (),
) -> GenerationJob:
    if body.min_tokens > max_tokens:
        given = shorten(body.min_tokens)
        message = f"'min_tokens' must be at most the {max_tokens} tokens allowed, but is {given}."
        raise bad_request(message, "integer_above_max_value", "min_tokens")
    if body.prompt_logprobs is not None and body.stream:
        raise bad_request("'prompt_logprobs' can't be streamed.", "invalid_value", "prompt_logprobs")
    scores = [body.prompt_logprobs, logprobs if echoes else None]
    response_id = id_prefix + uuid.uuid4().hex
    scored = max((count for count in scores if count is not None), default=None)
    requests = tuple(
        Request(
            request_id=RequestId(f"{response_id}-{index}"),
            prompt_token_ids=prompt,
            sampling=_sampling(body, services, max_tokens, logprobs, scored),
            n=body.n,
            priority=body.priority,
            cache_salt=cache_salt,
        )
        for index, prompt in enumerate(prompts)
    )
    return GenerationJob(
        response_id=response_id,
        endpoint=endpoint,
        model=body.model,
        created=int(services.now()),
        system_fingerprint=fingerprint(facts, services.version),
        requests=requests,
        n=body.n,
        logprobs=logprobs,
        empty=max_tokens == 0,
        text=TextOptions(
            stop=body.stops,
            include_stop=body.include_stop_str_in_output,
            skip_special_tokens=body.skip_special_tokens,
            continues_text=continues_text,
        ),
        stream=body.stream,
        include_usage=body.stream_options is not None and body.stream_options.include_usage,
        deadline=_deadline(body, services),
        echoes=echoes,
        prompt_logprobs=body.prompt_logprobs,
        return_token_ids=body.return_token_ids,
        headers=headers,
    )


def _deadline(body: GenerationOptions, services: Services) -> float | None:
    """The sooner of the client's and the server's."""
    given = [] if body.deadline_ms is None else [body.deadline_ms / 1000]
    given += [services.settings.request_timeout] if services.settings.request_timeout else []
    return min(given, default=None)


def _sampling(
    body: GenerationOptions,
    services: Services,
    max_tokens: int,
    logprobs: int | None,
    prompt_logprobs: int | None,
) -> SamplingParams:
    defaults = services.sampling_defaults
    given_top_k = defaults.top_k if body.top_k is None else body.top_k
    return SamplingParams(
        max_tokens=max(max_tokens, 1),
        temperature=defaults.temperature if body.temperature is None else body.temperature,
        top_k=max(given_top_k, 0),
        top_p=defaults.top_p if body.top_p is None else body.top_p,
        min_p=defaults.min_p if body.min_p is None else body.min_p,
        seed=services.draw_seed() if body.seed is None else body.seed,
        repetition_penalty=(
            defaults.repetition_penalty if body.repetition_penalty is None else body.repetition_penalty
        ),
        presence_penalty=body.presence_penalty,
        frequency_penalty=body.frequency_penalty,
        logit_bias={int(key): value for key, value in body.logit_bias.items()},
        logprobs=logprobs,
        prompt_logprobs=prompt_logprobs,
        stop_token_ids=tuple(body.stop_token_ids),
        ignore_eos=body.ignore_eos,
        min_tokens=body.min_tokens,
    )


def fingerprint(facts: EngineFacts, version: str) -> str:
    """Changes when the same request and seed may give other tokens."""
    parts = [version, facts.model_name, facts.dtype, facts.weights, facts.kv_dtype, facts.device_name]
    return "fp_" + hashlib.sha256("\0".join(parts).encode()).hexdigest()[:12]
