"""Options that say nothing where another one is, or is not, given: nothing is accepted and ignored."""

from __future__ import annotations

from collections.abc import Mapping

from configs.settings import Settings

ACCELERATOR_OPTIONS = (
    "device_kv_pages",
    "emulate_profile",
    "profile",
    "plan_mode",
    "tpot_limit",
    "host_tpot_limit",
)
"""Mean nothing without one."""
ADMIN_OPTIONS = ("admin_host", "admin_key")
"""Mean nothing without the second listener's port."""
ADDRESS_OPTIONS = ("host", "port", "tls_cert")
"""Mean nothing where a Unix socket is listened on."""
TLS_OPTIONS = ("tls_key", "tls_ca")
"""Mean nothing without a certificate."""


def without_effect(settings: Settings, origins: Mapping[str, str]) -> str | None:
    """What is wrong with the first option that would have no effect, beginning with its origin."""
    if settings.device == "cpu":
        for name in ACCELERATOR_OPTIONS:
            if getattr(settings, name) not in (None, "auto"):
                return f"{origins[name]}: there is no accelerator to plan for; add --device emulated"
    if settings.uds is not None:
        for name in ADDRESS_OPTIONS:
            # Container images set the address in the environment, for those who say nothing else.
            if _is_changed(settings, name) and not origins[name].startswith("environment"):
                return f"{origins[name]}: the server listens on a Unix socket ({origins['uds']}) instead"
    if settings.admin_port is None:
        for name in ADMIN_OPTIONS:
            if _is_changed(settings, name):
                return f"{origins[name]}: there is no second listener without --admin-port"
    if settings.max_requests_per_key and not settings.api_key and settings.api_key_file is None:
        return f"{origins['max_requests_per_key']}: there are no keys; add --api-key or --api-key-file"
    return _tls(settings, origins)


def _is_changed(settings: Settings, name: str) -> bool:
    return bool(getattr(settings, name) != getattr(Settings(), name))


def _tls(settings: Settings, origins: Mapping[str, str]) -> str | None:
    if settings.tls_cert is None:
        given = [name for name in TLS_OPTIONS if getattr(settings, name) is not None]
        given += ["tls_client_auth"] if settings.tls_client_auth != "none" else []
        return f"{origins[given[0]]}: there is no TLS without --tls-cert" if given else None
    if (settings.tls_ca is None) != (settings.tls_client_auth == "none"):
        name = "tls_client_auth" if settings.tls_ca is None else "tls_ca"
        return f"{origins[name]}: --tls-ca and --tls-client-auth go together"
    return None
