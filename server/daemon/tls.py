"""TLS on the server's port, with certificates that can be exchanged while it runs."""

from __future__ import annotations

import ssl
from types import MappingProxyType

from configs.settings import Settings

_CLIENTS = MappingProxyType(
    {"none": ssl.CERT_NONE, "optional": ssl.CERT_OPTIONAL, "required": ssl.CERT_REQUIRED}
)


class CertificateError(Exception):
    """A certificate, key or authority can't be used; the message is for the user."""


class Tls:
    """One context for all connections; those that are open keep the certificate they began with.

    Args:
        settings: with ``tls_cert`` and what belongs to it.

    Raises:
        CertificateError: a file can't be used, or key and certificate don't belong together.
    """

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self.context = self._load(ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER))

    def reload(self) -> str:
        """Read the files again, for connections to come.

        Raises:
            CertificateError: something is wrong with them; nothing has changed then.
        """
        self._load(ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER))  # a trial: loading into a context is final
        self._load(self.context)
        return "new connections get it"

    def _load(self, context: ssl.SSLContext) -> ssl.SSLContext:
        settings = self._settings
        context.minimum_version = ssl.TLSVersion.TLSv1_2
        context.set_alpn_protocols(["http/1.1"])
        try:
            context.load_cert_chain(settings.tls_cert or "", settings.tls_key, password=_no_password)
            if settings.tls_ca is not None:
                context.load_verify_locations(settings.tls_ca)
        except (OSError, ValueError) as error:
            raise CertificateError(_reason(settings, error)) from error
        context.verify_mode = _CLIENTS[settings.tls_client_auth]
        return context


def _no_password() -> str:
    raise ValueError("the key is encrypted, and nobody is here to type its password")


def _reason(settings: Settings, error: Exception) -> str:
    files = ", ".join(filter(None, (settings.tls_cert, settings.tls_key, settings.tls_ca)))
    if isinstance(error, ssl.SSLError):
        return f"TLS can't be set up with {files}: {error.reason or error}"
    return f"TLS can't be set up with {files}: {error}"
