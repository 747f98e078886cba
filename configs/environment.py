"""Variables that look like settings and are none, and those that are not for child processes.

Kubernetes puts variables into pods beside a service named like this program.
For a service ``tandem`` it makes TANDEM_PORT=tcp://10.0.0.1:80, TANDEM_SERVICE_HOST and others ("service
links"), which look like settings and are none.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping

_NAME = re.compile(
    r"(?:[A-Z0-9_]+_)?(?:SERVICE_HOST|SERVICE_PORT(?:_[A-Z0-9_]+)?"
    r"|PORT(?:_\d+_(?:TCP|UDP|SCTP)(?:_(?:PROTO|PORT|ADDR))?)?)"
)
_ADDRESS = re.compile(r"(?:tcp|udp|sctp)://\S+")


def without_service_links(
    environment: Mapping[str, str], prefix: str
) -> tuple[dict[str, str], tuple[str, ...]]:
    """The environment without such variables, and their names.

    A name alone proves nothing where it is also an option's: then the value has to be an address.
    """
    found = [name for name, value in environment.items() if _is_link(name, value, prefix)]
    return {name: value for name, value in environment.items() if name not in found}, tuple(sorted(found))


def _is_link(name: str, value: str, prefix: str) -> bool:
    if not name.startswith(prefix):
        return False
    rest = name.removeprefix(prefix)
    if not _NAME.fullmatch(rest):
        return False
    return bool(_ADDRESS.fullmatch(value)) or "SERVICE_" in rest or bool(re.search(r"PORT_\d", rest))


def inherited_environment(prefix: str = "TANDEM_") -> dict[str, str]:
    """This process's environment without the settings, among which are keys: children get what they need."""
    return {name: value for name, value in os.environ.items() if not name.startswith(prefix)}
