"""What is said of a download that failed: who could not be reached, and why, in one line."""

from __future__ import annotations

import re
from http import HTTPStatus
from urllib.parse import urlsplit

from uqbench.errors import DataError
from uqbench.formatting import printable, shortened

_REASONS = (
    ("ProxyError", "the proxy does not let it through"),
    (
        "NameResolutionError|gaierror|Name or service not known|name resolution|getaddrinfo"
        "|nodename nor servname",
        "name not resolved",
    ),
    ("Connection ?refused", "connection refused"),
    ("[Tt]ime(d )?-?[Oo]ut", "no answer in time"),
    ("SSLError|SSLCert|CERTIFICATE_VERIFY", "its certificate is not accepted"),
    ("Network is unreachable|[Nn]o route to host", "network unreachable"),
)
"""What requests, urllib and torchvision write, each in its way, as a pattern, and what it means."""
_CHARACTERS = 160


def failed_download(place: str, error: BaseException) -> DataError:
    """Return the error to raise. place: the URL, or the name of what is downloaded."""
    host = urlsplit(place).hostname or "its server"
    text = f"{type(error).__name__}: {error}"
    status = _status(error)
    advice = "check the network connection and run the command again"
    if status is not None:
        says, advice = f"{host} answered {status}", "run the command again later"
    else:
        reason = next((words for pattern, words in _REASONS if re.search(pattern, text)), "")
        says = f"could not reach {host} ({reason})"
        if not reason:
            first = next(filter(None, map(printable, text.splitlines())), "")
            says = f"download failed ({shortened(first, _CHARACTERS)})"
    return DataError(f"{place}: {says}; {advice}")


def _status(error: BaseException) -> str | None:
    """The HTTP status of an error of requests or of urllib."""
    code = getattr(getattr(error, "response", None), "status_code", getattr(error, "code", None))
    try:
        return f"{code} {HTTPStatus(code).phrase}"
    except ValueError:
        return None
