"""OpenAI's error object: every answer of the API that is not a success."""

from __future__ import annotations

import math

import msgspec

from server.engine_client.protocol import EngineState, EngineUnavailable, QueueFull

INVALID_REQUEST = "invalid_request_error"
SERVER_ERROR = "server_error"
RATE_LIMIT = "rate_limit_error"

SHOWN_CHARACTERS = 100
"""The most of a client's value that a message repeats."""


class ApiError(Exception):
    """Ends a request with an error object. The message is one sentence for the client.

    OpenAI's SDKs retry 408, 409, 429 and every 5xx, so what would fail again has another status.
    """

    def __init__(
        self,
        status: int,
        message: str,
        *,
        code: str | None,
        param: str | None = None,
        kind: str = INVALID_REQUEST,
        headers: dict[str, str] | None = None,
        rejection: str = "invalid",
    ) -> None:
        super().__init__(message)
        self.status = status
        self.message = message
        self.code = code
        self.param = param
        self.kind = kind
        self.headers = headers or {}
        self.rejection = rejection
        """Label of ``requests_rejected_total``, where the request was never admitted."""

    def body(self) -> bytes:
        """The error object as UTF-8 JSON."""
        error = {"message": self.message, "type": self.kind, "param": self.param, "code": self.code}
        return msgspec.json.encode({"error": error})


def shorten(value: object) -> str:
    """A value as a message shows it: JSON where it is JSON, cut at 100 characters."""
    try:
        text = msgspec.json.encode(value).decode()
    except (TypeError, ValueError):
        text = str(value)
    return text if len(text) <= SHOWN_CHARACTERS else text[:SHOWN_CHARACTERS] + "..."


def bad_request(message: str, code: str, param: str | None = None) -> ApiError:
    """A request that is wrong and would be wrong again."""
    return ApiError(400, message, code=code, param=param)


def unsupported_parameter(param: str, why: str = "is not supported by this server") -> ApiError:
    """A field that is known, or might be, and has no effect here: refused rather than ignored."""
    return bad_request(f"The parameter '{param}' {why}.", "unsupported_parameter", param)


def unauthorized(*, given: bool) -> ApiError:
    """No key, or one that is not accepted; what was sent is not repeated."""
    message = "The API key is not valid." if given else "An API key is needed: Authorization: Bearer KEY."
    headers = {"WWW-Authenticate": "Bearer"}
    return ApiError(401, message, code="invalid_api_key", headers=headers)


def key_limit_reached(limit: int) -> ApiError:
    """The caller's key has as many requests running as it may have."""
    message = f"This API key may have {limit} requests running at once, and has."
    return ApiError(
        429,
        message,
        code="rate_limit_exceeded",
        kind=RATE_LIMIT,
        headers={"Retry-After": "1"},
        rejection="rate_limit",
    )


def body_too_large(limit: int) -> ApiError:
    """A body over the limit, in bytes."""
    message = f"The request body is larger than the {limit} bytes this server accepts."
    headers = {"Connection": "close"}
    return ApiError(413, message, code="request_too_large", headers=headers, rejection="too_large")


def body_too_slow() -> ApiError:
    """A body that was announced and did not come."""
    headers = {"Connection": "close"}
    return ApiError(408, "The request body did not come in time.", code="request_timeout", headers=headers)


def too_many_values() -> ApiError:
    """A body within the byte limit whose many small values would take too long to decode."""
    message = "The request body holds more JSON values than this server accepts."
    return ApiError(413, message, code="request_too_large", rejection="too_large")


def model_not_found(name: str) -> ApiError:
    """A model this server does not serve."""
    message = f"The model {shorten(name)} does not exist on this server."
    return ApiError(404, message, code="model_not_found", param="model")


def context_length_exceeded(
    limit: int, prompt: int, output: int, param: str, *, at_least: bool = False
) -> ApiError:
    """A prompt, or a prompt with its output, that the model's context can't hold. Counts are tokens."""
    needed = f"at least {prompt}" if at_least else str(prompt + output)
    parts = f" ({prompt} in the prompt, {output} for the output)" if output else ""
    message = f"This model's context holds {limit} tokens, but the request needs {needed} tokens{parts}."
    return bad_request(message, "context_length_exceeded", param)


def queue_full(error: QueueFull) -> ApiError:
    """Too many requests wait already."""
    return _later("The request queue is full.", "server_overloaded", error.retry_after_seconds, "queue_full")


def engine_unavailable(error: EngineUnavailable) -> ApiError:
    """The engine takes no requests: it loads, drains or is gone."""
    match error.state:
        case EngineState.DRAINING:
            message = "The server is shutting down and takes no new requests."
            return _later(message, "server_draining", error.retry_after_seconds, "draining")
        case EngineState.FAILED:
            message = "The engine failed and is not being restarted."
            return ApiError(503, message, code="engine_error", kind=SERVER_ERROR, rejection="loading")
        case _:
            message = "The model is being loaded."
            return _later(message, "model_loading", error.retry_after_seconds, "loading")


def queue_timeout(seconds: float, retry_after_seconds: float) -> ApiError:
    """It waited as long as it may, and nothing of it has been computed."""
    message = f"The request waited {seconds:g} seconds and could not be served."
    return _later(message, "queue_timeout", retry_after_seconds, "queue_timeout")


def deadline_passed(seconds: float) -> ApiError:
    """It has taken as long as it may."""
    message = f"The request was not finished within {seconds:g} seconds."
    return ApiError(504, message, code="request_timeout", kind=SERVER_ERROR, rejection="timeout")


def request_aborted() -> ApiError:
    """Somebody had it ended; clients need not try again."""
    message = "The request was aborted by another request to do so."
    headers = {"x-should-retry": "false"}
    return ApiError(
        500, message, code="request_aborted", kind=SERVER_ERROR, headers=headers, rejection="abort"
    )


def cut_off(message: str, retry_after_seconds: float) -> ApiError:
    """An admitted request did not end in the time it had before the server ends."""
    return _later(message, "server_draining", retry_after_seconds, "draining")


def engine_error(message: str) -> ApiError:
    """The engine could not finish an admitted request."""
    return ApiError(500, message, code="engine_error", kind=SERVER_ERROR)


def internal_error() -> ApiError:
    """A fault of the server itself; the log has the details."""
    message = "The server could not handle the request because of an internal fault."
    return ApiError(500, message, code="internal_error", kind=SERVER_ERROR)


def _later(message: str, code: str, seconds: float, rejection: str) -> ApiError:
    headers = {"Retry-After": str(min(max(math.ceil(seconds), 1), 60))}
    return ApiError(503, message, code=code, kind=SERVER_ERROR, headers=headers, rejection=rejection)
