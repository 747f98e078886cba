"""What becomes of a request once it is checked: past this point there is no JSON and no doubt."""

from __future__ import annotations

from dataclasses import dataclass, field

from scheduler.types import Request
from server.text.choice_text import ChoiceText
from server.text.tokenizer import TokenTable


@dataclass(frozen=True, slots=True, kw_only=True)
class TextOptions:
    """How tokens become the text of an answer."""

    stop: tuple[str, ...] = ()
    include_stop: bool = False
    """Keep the stop string, or the token that ended the sequence."""
    skip_special_tokens: bool = True
    continues_text: bool = False
    """The answer goes on with the prompt's text, as in completions."""

    def for_choice(self, tokens: TokenTable) -> ChoiceText:
        """The text of one choice, empty as yet."""
        return ChoiceText(
            tokens,
            stop=self.stop,
            include_stop=self.include_stop,
            skip_special_tokens=self.skip_special_tokens,
            continues_text=self.continues_text,
        )


@dataclass(frozen=True, slots=True)
class Echo:
    """A prompt that is part of the answer's text."""

    token_ids: tuple[int, ...]
    hidden: frozenset[int] = frozenset()
    """Tokens that the tokenizer put around the client's text."""


@dataclass(frozen=True, slots=True, kw_only=True)
class GenerationJob:
    """A checked request for one or more prompts, each with ``n`` choices."""

    response_id: str
    endpoint: str
    """The route's path."""
    model: str
    """As the client named it."""
    created: int
    """Unix time in seconds."""
    system_fingerprint: str
    requests: tuple[Request, ...]
    """One for each prompt, in the client's order."""
    n: int
    logprobs: int | None
    """Alternatives wanted beside each token's logprob; None for no logprobs."""
    empty: bool
    """``max_tokens`` is 0: nothing is generated, and the engine is asked for the prompt's logprobs only."""
    text: TextOptions
    stream: bool
    include_usage: bool
    deadline: float | None = None
    """Seconds from its arrival after which it is given up."""
    echoes: tuple[Echo, ...] = ()
    """One for each prompt, if they are to be echoed."""
    prompt_logprobs: int | None = None
    """Alternatives wanted beside the logprob of each prompt token, apart from ``echoes``."""
    return_token_ids: bool = False
    headers: dict[str, str] = field(default_factory=dict)
    """To add to the response."""

    @property
    def shows_prompt(self) -> bool:
        """Whether anything of the prompt is part of the answer."""
        return bool(self.echoes) or self.prompt_logprobs is not None or self.return_token_ids

    @property
    def needs_engine(self) -> bool:
        """Whether there is anything to compute."""
        return not self.empty or self.requests[0].sampling.prompt_logprobs is not None

    @property
    def prompt_tokens(self) -> int:
        """Over all prompts."""
        return sum(len(request.prompt_token_ids) for request in self.requests)
