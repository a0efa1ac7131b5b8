"""A download that fails is one line that says who could not be reached, and why."""

import socket
import ssl
from urllib.error import HTTPError, URLError

import pytest
import requests

from uqbench.datasets.downloads import failed_download

UNKNOWN = "[Errno -2] Name or service not known"


@pytest.mark.parametrize(
    ("error", "reason"),
    [
        (
            requests.ConnectionError(
                "HTTPSConnectionPool(host='h', port=443): Max retries exceeded with url: /x "
                f"(Caused by NameResolutionError(\"Failed to resolve 'h' ({UNKNOWN})\"))"
            ),
            "name not resolved",
        ),
        (URLError(socket.gaierror(-2, "Name or service not known")), "name not resolved"),
        (
            RuntimeError(f"Error downloading x.gz:\nTried http://h/, got:\n<{UNKNOWN}>\n"),
            "name not resolved",
        ),
        (URLError(ConnectionRefusedError(111, "Connection refused")), "connection refused"),
        (URLError(TimeoutError("timed out")), "no answer in time"),
        (requests.ReadTimeout("h: Read timed out. (read timeout=60)"), "no answer in time"),
        (URLError(OSError(101, "Network is unreachable")), "network unreachable"),
        (requests.exceptions.ProxyError("Max retries exceeded"), "the proxy does not let it"),
        (URLError(ssl.SSLError("CERTIFICATE_VERIFY_FAILED")), "its certificate is not accepted"),
    ],
)
def test_the_reason_is_in_words(error, reason):
    text = str(failed_download("https://h.org/x.zip", error))
    assert text.startswith(f"https://h.org/x.zip: could not reach h.org ({reason}")
    assert text.endswith("); check the network connection and run the command again")


def test_without_a_url_it_is_the_server_that_could_not_be_reached():
    text = str(failed_download("KMNIST", TimeoutError()))
    assert text.startswith("KMNIST: could not reach its server (no answer in time); ")


def test_an_answer_of_a_server_has_its_number_and_its_name():
    text = str(failed_download("SVHN", HTTPError("http://h/", 503, "busy", {}, None)))
    assert text == "SVHN: its server answered 503 Service Unavailable; run the command again later"


def test_another_reason_is_quoted_from_its_first_line_and_its_cut_is_seen():
    text = str(failed_download("SVHN", ValueError(f"{'long ' * 100}\nsecond line")))
    assert text.startswith("SVHN: download failed (ValueError: long long ")
    assert "…); check the network" in text
    assert "second" not in text
