"""From a request to its typed body."""

from __future__ import annotations

from functools import partial
from typing import TypeVar

from fastapi import Request

from server.http.body import INLINE_BYTES, check_content_type, decode_object, read_body
from server.schemas.base import Body
from server.schemas.parsing import parse_request
from server.services import Services

Schema = TypeVar("Schema", bound=Body)


async def read_request(request: Request, services: Services, schema: type[Schema]) -> Schema:
    """The body of a request, checked against a schema.

    Raises:
        ApiError: it is none.
        ClientDisconnected: the client left.
    """
    check_content_type(request.headers)
    limit = int(services.settings.max_body_mib * 1024 * 1024)
    body = await read_body(request.receive, request.headers, limit)
    return await services.worker.run(len(body), partial(_parse, schema, body), inline=INLINE_BYTES)


def _parse(schema: type[Schema], body: bytes) -> Schema:
    return parse_request(schema, decode_object(body))
