"""How a log line looks, in both processes: text for people, JSON for collectors."""

from __future__ import annotations

import json
import logging
import time
from typing import Literal

LogFormat = Literal["text", "json"]


def formatter(log_format: LogFormat, process: str = "") -> logging.Formatter:
    """One line a message.

    Args:
        log_format: of the two.
        process: named in each line, where it is not the server.
    """
    if log_format == "json":
        return _JsonFormatter(process)
    who = f" {process}" if process else ""
    return logging.Formatter(f"%(asctime)s{who} %(levelname)s %(name)s: %(message)s")


class _JsonFormatter(logging.Formatter):
    """An object a line: time (UTC), level, logger, message, and the record's ``fields``, if it has any."""

    def __init__(self, process: str) -> None:
        super().__init__()
        self._process = {"process": process} if process else {}

    def format(self, record: logging.LogRecord) -> str:
        """The line, without its end."""
        when = time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(record.created))
        line: dict[str, object] = {
            "time": f"{when}.{int(record.msecs):03}Z",
            "level": record.levelname.lower(),
            "logger": record.name,
            **self._process,
        }
        fields = getattr(record, "fields", None)
        line |= fields if isinstance(fields, dict) else {"message": record.getMessage()}
        if record.exc_info:
            line["exception"] = self.formatException(record.exc_info)
        return json.dumps(line, ensure_ascii=False, default=str)
