"""What /openapi.json says of bodies that FastAPI does not read and write itself."""

from __future__ import annotations

from typing import Any

from fastapi import FastAPI
from fastapi.openapi.utils import get_openapi
from pydantic import BaseModel
from pydantic.json_schema import models_json_schema

from server.schemas.base import Body
from server.schemas.chat import ChatCompletionRequest
from server.schemas.completions import CompletionRequest
from server.schemas.responses import ChatCompletionChunk, CompletionChunk, ErrorAnswer
from server.schemas.tokens import (
    AbortAnyRequest,
    AbortRequest,
    ApplyTemplateRequest,
    DetokenizeRequest,
    TokenizeRequest,
)

REF = "#/components/schemas/{model}"


def request_body(schema: type[Body]) -> dict[str, Any]:
    """``openapi_extra`` of a route that reads a JSON body."""
    content = {"application/json": {"schema": _ref(schema)}}
    return {"requestBody": {"required": True, "content": content}}


def error_responses(*statuses: int) -> dict[int | str, dict[str, Any]]:
    """``responses`` for statuses that come with an error object."""
    return {status: {"model": ErrorAnswer, "description": "Error"} for status in statuses}


def stream_responses(whole: type[BaseModel], chunk: type[BaseModel]) -> dict[int | str, dict[str, Any]]:
    """``responses`` of a route that generates text."""
    answer = {
        "description": "The answer; with `stream: true`, chunks as server-sent events, then `[DONE]`",
        "model": whole,
        "content": {"text/event-stream": {"schema": _ref(chunk)}},
    }
    return {200: answer, **error_responses(400, 404, 408, 413, 415, 500, 503)}


def describe(app: FastAPI) -> dict[str, Any]:
    """The OpenAPI document of all routes, made once."""
    if app.openapi_schema is None:
        document = get_openapi(
            title=app.title,
            version=app.version,
            description=app.description,
            routes=app.routes,
            servers=app.servers or None,
        )
        bodies: tuple[type[BaseModel], ...] = (
            *(ChatCompletionRequest, CompletionRequest, TokenizeRequest, DetokenizeRequest),
            *(ApplyTemplateRequest, AbortRequest, AbortAnyRequest),
        )
        chunks: tuple[type[BaseModel], ...] = (ChatCompletionChunk, CompletionChunk)
        modes: list[Any] = [(model, "validation") for model in bodies + chunks]
        _, definitions = models_json_schema(modes, ref_template=REF)
        document.setdefault("components", {}).setdefault("schemas", {}).update(definitions["$defs"])
        app.openapi_schema = document
    return app.openapi_schema


def _ref(model: type[BaseModel]) -> dict[str, str]:
    return {"$ref": REF.format(model=model.__name__)}
