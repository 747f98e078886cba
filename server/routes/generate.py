"""POST /v1/chat/completions and POST /v1/completions."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from functools import partial
from typing import Any, TypeVar

from fastapi import APIRouter, Request
from starlette.responses import Response

from server.generation.answers import GenerationResponse, chat_response, completion_response
from server.generation.job import GenerationJob
from server.http.body import ClientDisconnected
from server.http.errors import ApiError
from server.routes.reading import read_request
from server.schemas.chat import ChatCompletionRequest
from server.schemas.completions import CompletionRequest
from server.schemas.openapi import request_body, stream_responses
from server.schemas.options import GenerationOptions
from server.schemas.responses import ChatCompletion, ChatCompletionChunk, Completion, CompletionChunk
from server.services import Services
from server.validation import chat_job, completion_job

Schema = TypeVar("Schema", bound=GenerationOptions)


def generation_router(services: Services) -> APIRouter:
    """The routes that generate text."""
    router = APIRouter()

    @router.post(
        "/v1/chat/completions",
        openapi_extra=request_body(ChatCompletionRequest),
        responses=stream_responses(ChatCompletion, ChatCompletionChunk),
        response_class=Response,
    )
    async def create_chat_completion(request: Request) -> Response:
        """Continue a conversation."""
        prepare = partial(_prepare, request, services, ChatCompletionRequest, chat_job)
        return await _counted(services, request, "/v1/chat/completions", prepare, chat_response)

    @router.post(
        "/v1/completions",
        openapi_extra=request_body(CompletionRequest),
        responses=stream_responses(Completion, CompletionChunk),
        response_class=Response,
    )
    async def create_completion(request: Request) -> Response:
        """Continue a text."""
        prepare = partial(_prepare, request, services, CompletionRequest, completion_job)
        return await _counted(services, request, "/v1/completions", prepare, completion_response)

    return router


async def _counted(
    services: Services,
    request: Request,
    endpoint: str,
    prepare: Callable[[], Awaitable[GenerationJob]],
    respond: Callable[[GenerationJob, Services], GenerationResponse],
) -> Response:
    """Every request received is rejected here or finished by its record, once."""
    services.metrics.received(endpoint).inc()
    try:
        return respond(await prepare(), services)
    except ApiError as error:
        services.metrics.rejected(error.rejection).inc()
        raise
    except ClientDisconnected:
        services.metrics.finished(endpoint, "abort").inc()
        return NoResponse()


async def _prepare(
    request: Request,
    services: Services,
    schema: type[Schema],
    make_job: Callable[[Schema, Services], Awaitable[GenerationJob]],
) -> GenerationJob:
    return await make_job(await read_request(request, services, schema), services)


class NoResponse(Response):
    """For a client that has gone."""

    async def __call__(self, *_: Any) -> None:  # noqa: ANN401 - ASGI's arguments, none of them used
        """Send nothing."""
