"""From messages and texts to the token ids of prompts."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any, Protocol

from scheduler.messages import EngineFacts
from server.generation.encoding import encode_prompt
from server.http.errors import ApiError, bad_request, shorten
from server.schemas.chat import AssistantMessage, ChatCompletionRequest, Message
from server.schemas.completions import CompletionRequest, Prompt
from server.services import Services
from server.text.chat_template import RESERVED_VARIABLES, ChatTemplateError

INLINE_CHARACTERS = 8 * 1024
"""A longer text is encoded in the worker thread; this much takes about two milliseconds."""
_CONTINUE_MARK = "<<CONTINUE-HERE>> "
"""Put after the text to be continued: the text alone may occur in the template's own ending, too."""


class Conversation(Protocol):
    """What rendering needs of a request."""

    @property
    def messages(self) -> Sequence[Message] | None:
        """The conversation."""

    @property
    def add_generation_prompt(self) -> bool:
        """End with what makes the model answer."""

    @property
    def continue_final_message(self) -> bool:
        """Leave the last message open."""

    @property
    def chat_template_kwargs(self) -> dict[str, Any]:
        """More variables for the template."""

    @property
    def model_fields_set(self) -> set[str]:
        """What the client gave."""


async def chat_prompt(body: ChatCompletionRequest, services: Services, facts: EngineFacts) -> tuple[int, ...]:
    """The token ids of a conversation, rendered by the model's chat template.

    Raises:
        ApiError: 400, the template refuses the conversation, there is none, or the text is far too long.
    """
    text = await chat_text(body, services)
    encode = partial(_encode, text, services, facts.context_length)
    return await services.worker.run(len(text), encode, inline=INLINE_CHARACTERS)


async def completion_prompts(
    body: CompletionRequest, services: Services, facts: EngineFacts
) -> list[tuple[int, ...]]:
    """The token ids of every prompt of a completion request, none of them empty.

    Raises:
        ApiError: 400, an id is outside the vocabulary, or a text has no tokens or far too many.
    """

    def encode_all() -> list[tuple[int, ...]]:
        return [_token_ids(prompt, services, facts) for prompt in body.prompt]

    size = sum(map(len, body.prompt))
    return await services.worker.run(size, encode_all, inline=INLINE_CHARACTERS)


def _token_ids(prompt: Prompt, services: Services, facts: EngineFacts) -> tuple[int, ...]:
    if isinstance(prompt, str):
        ids = encode_prompt(
            prompt,
            services.tokenizer,
            context_length=facts.context_length,
            add_special=True,
            param="prompt",
        )
        if not ids:
            raise bad_request("'prompt' must have at least one token.", "empty_string", "prompt")
        return ids
    lowest, highest = min(prompt), max(prompt)
    if lowest < 0 or highest >= facts.vocab_size:
        wrong = shorten(lowest if lowest < 0 else highest)
        message = f"'prompt' has token id {wrong}, but ids go from 0 to {facts.vocab_size - 1}."
        raise bad_request(message, "invalid_value", "prompt")
    return prompt


async def chat_text(body: Conversation, services: Services) -> str:
    """A conversation as the model's chat template writes it.

    Raises:
        ApiError: 400, the template refuses the conversation, or there is none.
    """
    _check_template_options(body)
    messages = [_for_template(message) for message in body.messages or ()]
    if body.continue_final_message:
        messages[-1]["content"] += _CONTINUE_MARK
    try:
        text = await services.chat_template.render(
            messages,
            add_generation_prompt=body.add_generation_prompt and not body.continue_final_message,
            variables=body.chat_template_kwargs,
        )
    except ChatTemplateError as error:
        raise _template_error(str(error)) from None
    return _without_ending(text) if body.continue_final_message else text


def _encode(text: str, services: Services, context_length: int) -> tuple[int, ...]:
    ids = encode_prompt(
        text, services.tokenizer, context_length=context_length, add_special=False, param="messages"
    )
    if not ids:
        raise _template_error("the chat template made an empty prompt of the messages")
    return ids


def _template_error(reason: str) -> ApiError:
    message = f"{reason[:1].upper()}{reason[1:300].rstrip('.')}."
    return bad_request(message, "chat_template_error", "messages")


def _check_template_options(body: Conversation) -> None:
    reserved = sorted(RESERVED_VARIABLES & body.chat_template_kwargs.keys())
    if reserved:
        message = f"'chat_template_kwargs' must not have '{reserved[0]}', which the request itself sets."
        raise bad_request(message, "invalid_value", "chat_template_kwargs")
    if not body.continue_final_message:
        return
    last = body.messages[-1] if body.messages else None
    text = last.content if isinstance(last, AssistantMessage) else None
    if not isinstance(text, str) or not text.strip():
        message = "'continue_final_message' needs a last message from the assistant with text as content."
        raise bad_request(message, "invalid_value", "continue_final_message")
    if "add_generation_prompt" in body.model_fields_set and body.add_generation_prompt:
        message = "'continue_final_message' and 'add_generation_prompt' exclude each other."
        raise bad_request(message, "invalid_value", "continue_final_message")


def _without_ending(rendered: str) -> str:
    """A rendered conversation up to the end of its last message's text, found by its mark.

    As in transformers: a template that trims its messages has lost the mark's space, and then the
    text before the mark is trimmed too.
    """
    end = rendered.rfind(_CONTINUE_MARK.rstrip())
    if end < 0:
        raise _template_error("the chat template did not render the last message's text")
    whole = rendered.startswith(_CONTINUE_MARK, end)
    return rendered[:end] if whole else rendered[:end].rstrip()


def _for_template(message: Message) -> dict[str, Any]:
    """A message as the chat template takes it, with empty content where a tool call stands alone."""
    return {"content": "", **message.model_dump(exclude_none=True)}
