"""POST /tokenize, /detokenize and /apply-template: what the model gets to see of a request."""

from __future__ import annotations

from functools import partial

from fastapi import APIRouter, Request

from scheduler.messages import EngineFacts
from server.generation.prompts import INLINE_CHARACTERS, chat_text
from server.http.errors import bad_request, model_not_found, shorten
from server.routes.reading import read_request
from server.schemas.openapi import error_responses, request_body
from server.schemas.tokens import ApplyTemplateRequest, DetokenizeRequest, Prompt, TokenizeRequest, Tokens
from server.services import Services
from server.text.tokenizer import UnencodableTextError
from server.validation import ready_engine

ERRORS = (400, 404, 408, 413, 415, 500, 503)


def tokens_router(services: Services) -> APIRouter:
    """The routes between texts and tokens."""
    router = APIRouter()
    errors = error_responses(*ERRORS)

    @router.post("/tokenize", openapi_extra=request_body(TokenizeRequest), responses=errors)
    async def tokenize(request: Request) -> Tokens:
        """The tokens of a text or of a conversation."""
        body = await read_request(request, services, TokenizeRequest)
        facts = _ready(services, body.model)
        if body.prompt is not None:
            text, special = body.prompt, body.add_special_tokens
        else:
            text = await chat_text(body, services)
            special = body.add_special_tokens and "add_special_tokens" in body.model_fields_set
        encode = partial(_encode, text, services, special)
        ids = await services.worker.run(len(text), encode, inline=INLINE_CHARACTERS)
        strings = [_shown(token_id, services) for token_id in ids] if body.return_token_strs else None
        return Tokens(count=len(ids), max_model_len=facts.context_length, tokens=ids, token_strs=strings)

    @router.post("/detokenize", openapi_extra=request_body(DetokenizeRequest), responses=errors)
    async def detokenize(request: Request) -> Prompt:
        """The text of tokens."""
        body = await read_request(request, services, DetokenizeRequest)
        facts = _ready(services, body.model)
        if body.tokens and max(body.tokens) >= facts.vocab_size:
            message = f"'tokens' has {shorten(max(body.tokens))}, but ids end at {facts.vocab_size - 1}."
            raise bad_request(message, "invalid_value", "tokens")
        return Prompt(prompt=services.tokenizer.decode(body.tokens, body.skip_special_tokens))

    @router.post("/apply-template", openapi_extra=request_body(ApplyTemplateRequest), responses=errors)
    async def apply_template(request: Request) -> Prompt:
        """A conversation as the model's chat template writes it."""
        body = await read_request(request, services, ApplyTemplateRequest)
        _ready(services, body.model)
        text = await chat_text(body, services)
        return Prompt(prompt=text.replace(services.tokenizer.plain_text.mark, ""))

    return router


def _ready(services: Services, model: str | None) -> EngineFacts:
    facts = ready_engine(services)
    if model is not None and model != services.model_name:
        raise model_not_found(model)
    return facts


def _encode(text: str, services: Services, special: bool) -> list[int]:
    try:
        return services.tokenizer.encode(text, add_special=special)
    except UnencodableTextError as error:
        raise bad_request(f"The text can't be encoded: {error}.", "invalid_value", "prompt") from None


def _shown(token_id: int, services: Services) -> str:
    return services.tokenizer.token_bytes(token_id).decode(errors="backslashreplace")
