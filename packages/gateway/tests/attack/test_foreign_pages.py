"""Requests of browsers that show another page: the gateway and the service see by the headers that it isn't theirs."""

from __future__ import annotations

import pytest
from starlette.datastructures import Headers

from toolscout.home.access.http import check_origin, hosts_of

HOSTS = hosts_of(["localhost", "127.0.0.1", "::1", "tools.example.com"])
OWN = "http://127.0.0.1:8765"
FOREIGN_HOSTS = (
    *("evil.com", "evil.com:8765", "127.0.0.1.evil.com", "127.0.0.1@evil.com", "localhost.", "127.1:8765", "0.0.0.0"),
    *(
        "[::ffff:127.0.0.1]",
        "2130706433",
        "0x7f.1",
        "127.0.0.1:80@evil",
        "evil.com#127.0.0.1",
        "127.0.0.1 evil.com",
        "",
    ),
    *("tools.example.com.evil.com", "eviltools.example.com", "tools.example.com:80:80", "//127.0.0.1", "127.0.0.1/"),
)
FOREIGN_ORIGINS = (
    *("https://evil.com", "null", "", "http://127.0.0.1:9", "https://127.0.0.1:8765", "http://127.0.0.1:8765.evil.com"),
    *(
        "http://evil@127.0.0.1:8765",
        f"{OWN} https://evil.com",
        "http://localhost:3000",
        "file://",
        "http://",
        "127.0.0.1",
    ),
    *("http://127.0.0.1:8765@evil.com", "http://[::1]:9", "chrome-extension://abc", "http://127.0.0.1:08765x", "*"),
)


@pytest.mark.parametrize("host", FOREIGN_HOSTS)
def test_a_foreign_host_is_refused(host: str) -> None:
    assert check_origin(Headers({"host": host}), HOSTS, OWN) == 421


@pytest.mark.parametrize("origin", FOREIGN_ORIGINS)
def test_a_page_of_another_origin_is_refused(origin: str) -> None:
    assert check_origin(Headers({"host": "127.0.0.1:8765", "origin": origin}), HOSTS, OWN) == 403


@pytest.mark.parametrize("site", ("same-site", "cross-site", "none", ""))
@pytest.mark.parametrize("origin", ("http://localhost", "https://127.0.0.1", "http://[::1]", OWN))
def test_a_page_that_looks_like_ours_is_refused_if_the_browser_says_so(origin: str, site: str) -> None:
    headers = {"host": "127.0.0.1:8765", "origin": origin, "sec-fetch-site": site}
    assert check_origin(Headers(headers), HOSTS) == 403


@pytest.mark.parametrize("origin", (OWN, "http://127.0.0.1:8765", "https://tools.example.com"))
def test_our_own_page_comes_in(origin: str) -> None:
    headers = {"host": "127.0.0.1:8765", "origin": origin, "sec-fetch-site": "same-origin"}
    assert check_origin(Headers(headers), HOSTS) == 0
