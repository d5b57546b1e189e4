"""Nobody but the browser of the person at the terminal finishes a sign-in of `toolscout add`."""

from __future__ import annotations

import re
from urllib.parse import urlsplit

import pytest

from toolscout.sources.mcp_oauth import BrowserVisit

PORT = 49_200
ISSUER = "https://issuer.example/authorize?state=the-state&client_id=x"


def send(visit: BrowserVisit, target: str, *headers: str, host: str = f"127.0.0.1:{PORT}", method: str = "GET") -> int:
    lines = [f"{method} {target} HTTP/1.1", f"Host: {host}", *headers, "", ""]
    return int(visit.answer("\r\n".join(lines).encode("latin-1")).split(b" ")[1])


def open_link(visit: BrowserVisit) -> tuple[str, str]:
    """Open the link as the person does. Returns where it leads, and the cookie."""
    parts = urlsplit(visit.link)
    answer = visit.answer(f"GET {parts.path}?{parts.query} HTTP/1.1\r\nHost: {parts.netloc}\r\n\r\n".encode()).decode()
    location, cookie = re.search("location: (.*)\r", answer), re.search("set-cookie: (.*?);(.*)\r", answer)
    assert location and cookie and "HttpOnly" in cookie[2] and "SameSite=Lax" in cookie[2]
    return location[1], cookie[1]


def test_the_browser_that_opened_the_link_brings_the_answer() -> None:
    visit = BrowserVisit(ISSUER, PORT)
    location, cookie = open_link(visit)
    assert location == ISSUER
    assert send(visit, "/callback?state=the-state&code=c1", f"Cookie: other=1; {cookie}") == 200
    assert visit.reply == {"state": "the-state", "code": "c1"}
    send(visit, "/callback?state=the-state&code=c2", f"Cookie: {cookie}")
    assert visit.reply["code"] == "c1", "a second answer changes nothing"


@pytest.mark.parametrize(
    ("target", "headers", "host", "method", "status"),
    [
        ("/callback?state=the-state&code=c", [], "", "GET", 403),
        ("/callback?state=the-state&code=c", ["Cookie: toolscout_sign_in="], "", "GET", 403),
        ("/callback?state=the-state&code=c", ["Cookie: toolscout_sign_in=of another browser"], "", "GET", 403),
        ("/callback?state=the-state&code=c", ["Cookie: x=COOKIE"], "", "GET", 403),
        ("/callback?state=the-state&error=access_denied", [], "", "GET", 403),
        ("/callback?state=forged&code=c", ["Cookie: COOKIE"], "", "GET", 404),
        ("/callback?code=c", ["Cookie: COOKIE"], "", "GET", 404),
        ("/callback?state=&code=c", ["Cookie: COOKIE"], "", "GET", 404),
        ("/?state=the-state&code=c", ["Cookie: COOKIE"], "", "GET", 404),
        ("/callback?state=the-state&code=c", ["Cookie: COOKIE"], "evil.example", "GET", 421),
        ("/callback?state=the-state&code=c", ["Cookie: COOKIE"], f"evil.example:{PORT}", "GET", 421),
        ("/callback?state=the-state&code=c", ["Cookie: COOKIE"], "127.0.0.1:80", "GET", 421),
        ("/callback?state=the-state&code=c", ["Cookie: COOKIE", "Host: evil.example"], "", "GET", 421),
        ("http://evil.example/callback?state=the-state&code=c", ["Cookie: COOKIE"], "", "GET", 421),
        ("/callback?state=the-state&code=c", ["Cookie: COOKIE", "Origin: https://evil.example"], "", "GET", 403),
        ("/callback?state=the-state&code=c", ["Cookie: COOKIE", "Origin: null"], "", "GET", 403),
        ("/callback?state=the-state&code=c", ["Cookie: COOKIE"], "", "POST", 403),
        ("/callback?state=the-state&code=c", ["Cookie: toolscout_sign_in=\xe9"], "", "GET", 400),
        ("/callback?state=\xe9&code=c", ["Cookie: COOKIE"], "", "GET", 400),
        ("/sign-in", [], "", "GET", 404),
        ("/sign-in?token=", [], "", "GET", 404),
        ("/sign-in?token=guessed", [], "", "GET", 404),
        ("/sign-in?token=TOKEN", [], "evil.example", "GET", 421),
        ("/sign-in?token=TOKEN", ["Origin: https://evil.example"], "", "POST", 403),
    ],
)
def test_everybody_else_is_refused(target: str, headers: list[str], host: str, method: str, status: int) -> None:
    visit = BrowserVisit(ISSUER, PORT)
    _, cookie = open_link(visit)
    target = target.replace("TOKEN", visit.link.partition("token=")[2])
    found = send(
        visit,
        target,
        *(header.replace("COOKIE", cookie) for header in headers),
        host=host or f"127.0.0.1:{PORT}",
        method=method,
    )
    assert (found, visit.reply) == (status, {})


def test_an_issuer_without_a_state_leads_nobody_back() -> None:
    visit = BrowserVisit("https://issuer.example/authorize", PORT)
    _, cookie = open_link(visit)
    assert send(visit, "/callback?code=c", f"Cookie: {cookie}") == 404 and not visit.reply
