"""Chat templates rendered in a process of their own, which is ended when it takes too long."""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
import os
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

from configs.environment import inherited_environment
from engine.model_error import ModelError
from server.text.chat_template import ChatTemplateError, Message, TemplateSources
from server.text.plain_text import PlainText
from server.text.template_worker import LENGTH_BYTES, LOADING_SECONDS

WORKER = "server.text.template_worker"
RENDER_SECONDS = 1.0
"""CPU time for one conversation."""
PATIENCE = 10
"""Times as long, by the clock, until a process that does not answer is ended: others want the CPU, too."""

logger = logging.getLogger(__name__)


class Renderer(Protocol):
    """Makes prompts of conversations, as ``ChatTemplate.render`` does."""

    async def render(
        self,
        messages: Sequence[Message],
        *,
        tools: Sequence[Mapping[str, Any]] | None = None,
        add_generation_prompt: bool = True,
        variables: Mapping[str, Any] | None = None,
    ) -> str:
        """The prompt for a conversation. Raises ChatTemplateError."""


@dataclass
class TemplateProcess:
    """One process, one conversation at a time; started again after one that had to be ended."""

    sources: TemplateSources
    plain: PlainText
    seconds: float = RENDER_SECONDS
    _process: asyncio.subprocess.Process | None = None
    _turn: asyncio.Lock = field(default_factory=asyncio.Lock)

    async def start(self) -> None:
        """Compile the templates.

        Raises:
            ModelError: one is no valid Jinja, or can't be compiled in time.
        """
        import_path = os.pathsep.join(path or str(Path.cwd()) for path in sys.path)
        self._process = await asyncio.create_subprocess_exec(
            *(sys.executable, "-P", "-m", WORKER),
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            start_new_session=True,
            env={**inherited_environment(), "PYTHONPATH": import_path},
        )
        try:
            await self._ask(
                {
                    "sources": dict(self.sources.by_name),
                    "special_tokens": dict(self.sources.special_tokens),
                    "where": str(self.sources.where),
                    "control_tokens": self.plain.spellings,
                    "mark": self.plain.mark,
                    "seconds": self.seconds,
                },
                3 * LOADING_SECONDS,
            )
        except ChatTemplateError as error:
            await self.close()
            raise ModelError(str(error)) from error

    async def render(
        self,
        messages: Sequence[Message],
        *,
        tools: Sequence[Mapping[str, Any]] | None = None,
        add_generation_prompt: bool = True,
        variables: Mapping[str, Any] | None = None,
    ) -> str:
        """The prompt for a conversation.

        Raises:
            ChatTemplateError: the template refuses it, fails, or takes too long or too much.
        """
        request = {
            "messages": messages,
            "tools": tools,
            "add_generation_prompt": add_generation_prompt,
            "variables": variables or {},
        }
        async with self._turn:
            if self._process is None:
                try:
                    await self.start()
                except (ModelError, OSError) as error:
                    raise ChatTemplateError(f"the chat template's process did not start: {error}") from error
            return await self._ask(request, PATIENCE * self.seconds)

    async def close(self) -> None:
        """End the process."""
        process, self._process = self._process, None
        if process is not None:
            with contextlib.suppress(ProcessLookupError):
                process.kill()
            if process.stdin is not None:
                process.stdin.close()
            await process.wait()

    async def _ask(self, request: Mapping[str, Any], seconds: float) -> str:
        answered = False
        try:
            async with asyncio.timeout(seconds):
                answer = await self._exchange(json.dumps(request).encode())
            answered = True
        except TimeoutError:
            raise ChatTemplateError("the chat template took too long") from None
        except (asyncio.IncompleteReadError, ConnectionError):
            raise ChatTemplateError("the chat template broke the process it runs in") from None
        finally:
            # Also when the request was given up: its answer must not be taken for the next one's.
            if not answered:
                logger.warning("the chat template's process is ended")
                await self.close()
        if "error" in answer:
            raise ChatTemplateError(answer["error"])
        return answer["text"]

    async def _exchange(self, body: bytes) -> dict[str, str]:
        process = self._process
        if process is None or process.stdin is None or process.stdout is None:
            raise ConnectionError("there is no process")
        process.stdin.write(len(body).to_bytes(LENGTH_BYTES, "big") + body)
        await process.stdin.drain()
        length = int.from_bytes(await process.stdout.readexactly(LENGTH_BYTES), "big")
        answer: dict[str, str] = json.loads(await process.stdout.readexactly(length))
        return answer
