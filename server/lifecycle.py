"""The life of ``tandem serve``: find the model, start the engine, open the port, drain, end.

The port is bound first and opened once the engine has found the checkpoint good, so that whatever is
wrong with the command is one line and an exit code, and what takes long is a 503 with Retry-After.
"""

from __future__ import annotations

import asyncio
import logging
import signal
import sys
from pathlib import Path

import uvloop

import server
from configs.log_format import LogFormat, formatter
from configs.settings import Settings
from engine.model_error import ModelError
from engine.weights.source import ModelSource, resolve
from scheduler.messages import EngineFacts, Start
from server.admin import create_admin_app
from server.app import create_app
from server.daemon.doors import Doors
from server.daemon.http_server import HttpServer
from server.daemon.listener import ListenError
from server.daemon.loading_progress import LoadingProgress, LogLines
from server.daemon.reloading import ReloadSignal
from server.daemon.stop_signals import StopSignals
from server.daemon.tls import CertificateError
from server.engine_client.client import EngineFailed, SupervisedEngineClient
from server.engine_client.process import ENGINE_MODULE
from server.http.keys import KeyFileError
from server.metrics.registry import Metrics
from server.services import Services
from server.text.chat_template import TemplateSources, template_sources
from server.text.sampling_defaults import SamplingDefaults, load_sampling_defaults
from server.text.template_process import TemplateProcess
from server.text.tokenizer import Tokenizer, load_tokenizer

FAILURE, USAGE_ERROR = 1, 2
INTERRUPTED = 128 + signal.SIGINT
_SHUT_DOWN = "The server shut down before the request ended."

logger = logging.getLogger(__name__)


def serve(settings: Settings, engine_module: str = ENGINE_MODULE) -> int:
    """Run the daemon until it is told to stop.

    Returns:
        The exit code: 0 after an orderly end, 1 where there is no model or no engine to serve it, 2
        where the address, keys or certificates can't be had, 128 and the signal's number where a second
        signal cut it short.
    """
    configure_logging(settings.log_level, settings.log_format)
    try:
        # The port first: finding the model may be a download.
        with Doors(settings) as doors:
            source = resolve(settings.model)
            with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
                return runner.run(_Daemon(settings, source, doors, engine_module).run())
    except (ModelError, EngineFailed) as error:
        return _fail(error, FAILURE)
    except (ListenError, KeyFileError, CertificateError) as error:
        return _fail(error, USAGE_ERROR)
    except KeyboardInterrupt:
        return INTERRUPTED


def configure_logging(level: str, log_format: LogFormat = "text") -> None:
    """One line a message on standard error; of the libraries only what is wrong."""
    handler = logging.StreamHandler()
    handler.setFormatter(formatter(log_format))
    logging.basicConfig(handlers=[handler], force=True)
    for name in ("server", "engine", "scheduler", "configs"):
        logging.getLogger(name).setLevel(level.upper())


def start_message(settings: Settings, source: ModelSource) -> Start:
    """What the engine is to do."""
    return Start(
        model_kind=source.kind,
        model_path=str(source.path.absolute()),
        model_name=printable(source.short_name),
        dtype=settings.dtype,
        quantization=settings.quantization,
        max_model_len=settings.max_model_len,
        page_size=settings.page_size,
        host_kv_pages=settings.host_kv_pages,
        host_kv_gib=settings.host_kv_gib,
        kv_dtype=settings.kv_dtype,
        max_batch_tokens=settings.max_batch_tokens,
        max_running=settings.max_running,
        prefix_caching=settings.prefix_caching,
        threads=settings.threads,
        cpu_kernels=settings.cpu_kernels,
        device=settings.device,
        device_kv_pages=settings.device_kv_pages,
        emulate_profile=_absolute(settings.emulate_profile),
        profile=_absolute(settings.profile),
        plan_mode=settings.plan_mode,
        tpot_limit=settings.tpot_limit,
        host_tpot_limit=settings.host_tpot_limit,
        log_level=settings.log_level,
        log_format=settings.log_format,
    )


def _absolute(path: str | None) -> str | None:
    return None if path is None else str(Path(path).absolute())


def printable(name: str) -> str:
    """A file's name as text: bytes in it that are no UTF-8 can't go into JSON or metrics."""
    return name.encode("utf-8", "surrogateescape").decode("utf-8", "replace")


def ready_line(where: str, model_name: str, facts: EngineFacts) -> str:
    """What the user was waiting for: the URL, the model, and how much context the pages hold."""
    tiers = [("host", facts.host_kv_pages), ("device", facts.device_kv_pages)]
    pages = ", ".join(
        f"{tier} {count} KV pages ({count * facts.page_size:,} tokens)" for tier, count in tiers
    )
    return (
        f"Ready on {where} with {model_name} ({facts.family}, {facts.parameters / 1e6:.0f}M parameters, "
        f"{facts.weights} weights of {facts.weight_bytes / 2**20:.0f} MiB, {facts.dtype} on "
        f"{facts.device_name}, loaded in {facts.load_seconds:.1f} s); {pages}, {facts.kv_dtype}"
    )


class _Daemon:
    """One run of the server inside the event loop."""

    def __init__(self, settings: Settings, source: ModelSource, doors: Doors, engine_module: str) -> None:
        self._settings = settings
        self._source = source
        self._doors = doors
        self._model_name = settings.served_model_name or printable(source.short_name)
        self._metrics = Metrics(self._model_name)
        self._engine = SupervisedEngineClient(
            start_message(settings, source),
            queue_limit=settings.queue_limit,
            queued_tokens=settings.max_queued_tokens,
            restart_limit=settings.engine_restarts,
            stall_timeout=settings.stall_timeout,
            module=engine_module,
            on_loading=self._progress().update,
            on_iteration=self._metrics.observe_iteration,
        )
        self._http: HttpServer | None = None
        self._admin: HttpServer | None = None

    def _progress(self) -> LoadingProgress:
        if self._settings.log_format == "json":
            return LoadingProgress(self._model_name, LogLines(logger))
        return LoadingProgress(self._model_name, sys.stderr)

    async def run(self) -> int:
        """Until a signal or a failure.

        Raises:
            ModelError: the tokenizer or chat template can't be used.
            EngineFailed: the engine can't load the model, or died too often.
            ListenError: the port was taken meanwhile.
        """
        with StopSignals() as signals, ReloadSignal(self._doors.readers()):
            supervising = asyncio.create_task(self._engine.supervise())
            serving = asyncio.create_task(self._serve())
            stopping = asyncio.create_task(signals.first())
            working = (supervising, serving)
            try:
                await asyncio.wait({*working, stopping}, return_when=asyncio.FIRST_COMPLETED)
                if stopping.done():
                    return await self._end(serving, signals)
                return await self._fail(supervising, serving)
            finally:
                await _cancel(supervising, serving, stopping)

    async def _fail(self, supervising: asyncio.Task[None], serving: asyncio.Task[None]) -> int:
        """Raise what ended one of the two tasks."""
        if serving.done():
            serving.result()
        await self._close(serving)
        supervising.result()
        return FAILURE

    async def _serve(self) -> None:
        tokenizer, sources, defaults = await asyncio.to_thread(_load_text, self._settings, self._source)
        template = TemplateProcess(sources, tokenizer.plain_text)
        try:
            await template.start()
            await self._serve_with(tokenizer, template, defaults)
        finally:
            await template.close()

    async def _serve_with(
        self, tokenizer: Tokenizer, template: TemplateProcess, defaults: SamplingDefaults
    ) -> None:
        await self._engine.wait_until_checked()
        services = Services(
            settings=self._settings,
            model_name=self._model_name,
            engine=self._engine,
            tokenizer=tokenizer,
            chat_template=template,
            sampling_defaults=defaults,
            metrics=self._metrics,
            engine_restarts=lambda: self._engine.restarts,
            version=server.__version__,
            keys=self._doors.keys,
        )
        app = await asyncio.to_thread(create_app, services)  # takes long enough to delay a signal
        self._http = self._doors.open(app)
        self._admin = self._doors.open_admin(create_admin_app(services, self._doors.admin_keys))
        announcing = asyncio.create_task(self._announce())
        try:
            servers = [one for one in (self._http, self._admin) if one is not None]
            await asyncio.gather(*(one.run_until_closed() for one in servers))
        finally:
            await _cancel(announcing)

    async def _announce(self) -> None:
        await self._engine.wait_until_ready()
        if self._engine.facts is not None:
            print(ready_line(self._doors.url, self._model_name, self._engine.facts), flush=True)

    async def _end(self, serving: asyncio.Task[None], signals: StopSignals) -> int:
        draining = asyncio.create_task(self._drain(serving))
        forced = asyncio.create_task(signals.second())
        try:
            await asyncio.wait({draining, forced}, return_when=asyncio.FIRST_COMPLETED)
            if not forced.done():
                return draining.result()
            self._engine.end_all(_SHUT_DOWN)
            return forced.result()
        finally:
            await _cancel(draining, forced)

    async def _drain(self, serving: asyncio.Task[None]) -> int:
        limit = self._settings.drain_timeout
        logger.info("draining: no new requests, %g seconds for those that run", limit)
        self._engine.drain()
        if not await self._engine.wait_until_idle(limit):
            cut = self._engine.end_all(_SHUT_DOWN)
            logger.warning("%d requests did not end in time", cut)
        await self._close(serving)
        return 0

    async def _close(self, serving: asyncio.Task[None]) -> None:
        """Close the port and let responses reach their clients."""
        if self._http is not None:
            self._http.close()
            if self._admin is not None:
                self._admin.close()
            await asyncio.wait({serving})


def _load_text(
    settings: Settings, source: ModelSource
) -> tuple[Tokenizer, TemplateSources, SamplingDefaults]:
    tokenizer = load_tokenizer(source)
    override = Path(settings.chat_template) if settings.chat_template else None
    return tokenizer, template_sources(tokenizer, override), load_sampling_defaults(source)


async def _cancel(*tasks: asyncio.Task[None] | asyncio.Task[int]) -> None:
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)


def _fail(error: Exception, code: int) -> int:
    print(f"tandem serve: {error}", file=sys.stderr)
    return code
