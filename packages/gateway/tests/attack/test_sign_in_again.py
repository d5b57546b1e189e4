"""A second attack on the sign-in: forty requests of foreign pages, hosts and browsers, and none binds a consent."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from anyio.from_thread import BlockingPortal, start_blocking_portal

from gateway.tests.attack.test_sign_in import BASE, EVIL, Site

LOOPBACK = "http://127.0.0.1:49200"

#: Headers with which a page of somebody else, or a browser that was led astray, presses ann's button.
FOREIGN: dict[str, dict[str, str]] = {
    "another origin": {"origin": EVIL},
    "no origin that has a name": {"origin": "null"},
    "an empty origin": {"origin": ""},
    "two origins": {"origin": f"{BASE} {EVIL}"},
    "an origin with a user": {"origin": "https://tools.example.com@evil.example"},
    "an origin that begins alike": {"origin": "https://tools.example.com.evil.example"},
    "an origin that ends alike": {"origin": "https://evil-tools.example.com"},
    "another port": {"origin": "https://tools.example.com:8443"},
    "another scheme": {"origin": "http://tools.example.com"},
    "a file": {"origin": "file://"},
    "an extension": {"origin": "chrome-extension://tools.example.com"},
    "a port that is no number": {"origin": "https://tools.example.com:x"},
    "a port that is too large": {"origin": "https://tools.example.com:99999"},
    "a backslash": {"origin": "https://tools.example.com\\@evil.example"},
    "brackets": {"origin": "https://[tools.example.com"},
    "a name with an end": {"origin": "https://tools.example.com."},
    "another site": {"sec-fetch-site": "cross-site"},
    "a sister site": {"sec-fetch-site": "same-site"},
    "the address bar": {"sec-fetch-site": "none"},
    "a site that is none": {"sec-fetch-site": "same-origin, cross-site"},
    "another host": {"host": "evil.example"},
    "a host with a user": {"host": "tools.example.com@evil.example"},
    "a host with two ports": {"host": "tools.example.com:443:80"},
    "a host that begins alike": {"host": "tools.example.com.evil.example"},
    "a cookie of other letters": {"cookie": "a=\xe9"},
}


@pytest.fixture(scope="module")
def portal() -> Iterator[BlockingPortal]:
    with start_blocking_portal() as portal:
        yield portal


@pytest.fixture
def site(portal: BlockingPortal) -> Site:
    return portal.call(Site, portal, BASE)


def press(site: Site, changes: dict[str, str], **options: Any) -> int:
    cookie, token = site.open_page(site.ann)
    headers = {"cookie": cookie, "origin": BASE, **changes}
    raw = [(name, value.encode("latin-1")) for name, value in headers.items()]
    path = options.pop("path", f"/oauth/sign-in?id={site.ann.id}")
    return site.send(options.pop("method", "POST"), path, data={"token": token}, headers=raw, **options).status_code


@pytest.mark.parametrize("name", FOREIGN)
def test_no_foreign_page_presses_the_button(name: str, site: Site) -> None:
    assert press(site, FOREIGN[name]) in (400, 403, 421)
    assert not site.ann.browsers and not site.ann.pressed


@pytest.mark.parametrize(
    "path",
    [
        "/oauth/sign-in",
        "/oauth/sign-in?id=",
        "/oauth/sign-in?id=../x",
        "/oauth/sign-in/?id={id}",
        "//oauth/sign-in?id={id}",
        "/oauth/../oauth/sign-in?id={other}",
        "/oauth/sign-in?id={other}",
        "/oauth/sign-in?id={id}&id={other}",
        "/OAUTH/sign-in?id={id}",
    ],
)
def test_no_other_address_presses_the_button(path: str, site: Site) -> None:
    assert press(site, {}, path=path.format(id=site.ann.id, other=site.mallory.id)) in (403, 404)
    assert not site.ann.browsers and not site.mallory.browsers


@pytest.mark.parametrize("method", ["PUT", "PATCH", "HEAD", "OPTIONS", "DELETE"])
def test_no_other_method_presses_the_button(method: str, site: Site) -> None:
    assert press(site, {}, method=method) in (404, 405)
    assert not site.ann.browsers


def test_the_cookie_and_the_token_of_one_sign_in_are_worth_nothing_in_another(site: Site) -> None:
    """Mallory opens a page of her own, and has ann's browser send what she got there, and the other way round."""
    own_cookie, own_token = site.open_page(site.mallory)
    cookie, token = site.open_page(site.ann)
    value = own_cookie.partition("=")[2]
    name = cookie.partition("=")[0]
    tries = [
        (f"{name}={value}", own_token),
        (f"{name}={value}", token),
        (cookie, own_token),
        (f"{cookie}; {name}={value}", token),
        ("", token),
        (cookie, ""),
        (cookie, token[:-1]),
        (cookie, token.upper()),
        (cookie, f"{token}\x00"),
        (f"{name}={token}", token),
    ]
    for one_cookie, one_token in tries:
        assert site.press(site.ann, one_cookie, one_token).status_code == 403, (one_cookie, one_token)
    assert not site.ann.browsers
    assert site.press(site.ann, cookie, token).status_code == 303, "and the honest browser still comes in"


def test_a_browser_that_did_not_go_on_brings_no_code_back(site: Site) -> None:
    """Mallory goes on herself, and has the issuer lead ann's browser back, with or without a cookie of ann's."""
    cookie, token = site.open_page(site.mallory)
    other, _ = site.open_page(site.ann)
    assert site.press(site.mallory, cookie, token).status_code == 303
    fresh, _ = site.open_page(site.mallory)  # ann only looked at the page
    name = cookie.partition("=")[0]
    for one in ("", other, fresh, f"{name}=", f"{name}={other.partition('=')[2]}", f"{cookie}; {name}=x"):
        assert site.come_back("mallory", one) == (403, None), one
    assert site.come_back("mallory", cookie, host="evil.example") == (421, None)
    assert site.come_back("mallory", cookie, origin=EVIL) == (403, None)
    for path in ("/oauth/callback", "/oauth/callback?code=c", "/oauth/callback?code=c&state="):
        assert site.send("GET", path, headers={"cookie": cookie}).status_code == 404


@pytest.mark.parametrize("cookie", [b"\xff\xfe=\xe9", "a=ü; b=ÿ".encode(), "ä=ü".encode("latin-1"), b"a=b\xc3"])
@pytest.mark.parametrize("path", ["/oauth/sign-in?id={id}", "/oauth/callback?code=c&state=state-of-ann"])
@pytest.mark.parametrize("method", ["GET", "POST"])
def test_a_cookie_of_other_letters_is_refused_on_every_route(method: str, path: str, cookie: bytes, site: Site) -> None:
    own, token = site.open_page(site.ann)
    headers = {b"cookie": own.encode() + b"; " + cookie, b"origin": BASE.encode()}
    answer = site.send(method, path.format(id=site.ann.id), data={"token": token}, headers=headers)
    assert answer.status_code in (400, 405) and "location" not in answer.headers
    assert not site.ann.pressed and not site.ann.done.is_set()


@pytest.mark.parametrize(
    "host",
    ["127.1", "0.0.0.0", "2130706433", "0x7f000001", "[::1]", "127.0.0.1.evil.example", "evil.127.0.0.1", "[::]"],
)
def test_no_other_spelling_of_the_loopback_presses_the_button(host: str, portal: BlockingPortal) -> None:
    site = portal.call(Site, portal, LOOPBACK)
    cookie, token = site.open_page(site.ann)
    assert site.press(site.ann, cookie, token, origin=f"http://{host}:49200").status_code == 403
    assert site.press(site.ann, cookie, token, origin="", host=f"{host}:49201").status_code in (403, 421)
    assert not site.ann.browsers


@pytest.mark.parametrize(
    "origin", ["http://localhost:3000", "http://127.0.0.1:3000", "http://127.0.0.1.nip.io", "null"]
)
def test_on_the_loopback_pages_of_other_ports_press_nothing(origin: str, portal: BlockingPortal) -> None:
    site = portal.call(Site, portal, LOOPBACK)
    cookie, token = site.open_page(site.ann)
    assert site.press(site.ann, cookie, token, origin=origin).status_code == 403
    assert not site.ann.browsers
