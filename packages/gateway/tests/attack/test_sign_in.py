"""Nobody binds the consent of one person to the session of another caller: requests of foreign pages and browsers."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from contextlib import suppress
from typing import Any

import httpx
import pytest
from anyio.from_thread import BlockingPortal, start_blocking_portal
from starlette.applications import Starlette

from toolscout_gateway.access.oauth_routes import OAuthRoutes
from toolscout_gateway.access.sign_in import SignIn, SignIns

BASE = "https://tools.example.com"
HOST = "tools.example.com"
EVIL = "https://evil.example"


class Site:
    """The routes of a gateway, with a sign-in of ann and one of mallory."""

    def __init__(self, portal: BlockingPortal, base: str) -> None:
        self.portal, self.base, self.sign_ins = portal, base, SignIns(base)
        self.ann, self.mallory = self.add("ann"), self.add("mallory")
        self.app = OAuthRoutes(Starlette(), self.sign_ins, lambda: None, ["127.0.0.1", "localhost"])

    def add(self, name: str) -> SignIn:
        sign_in = SignIn(name, "bank")
        with suppress(StopIteration):  # this is the thread of the event loop already
            sign_in.show_address(f"https://issuer.example/authorize?state=state-of-{name}").send(None)
        self.sign_ins.add(sign_in)
        return sign_in

    def send(self, method: str, path: str, **options: Any) -> httpx.Response:
        async def run() -> httpx.Response:
            transport = httpx.ASGITransport(self.app)  # type: ignore[arg-type]
            async with httpx.AsyncClient(transport=transport, base_url=self.base) as client:
                return await client.request(method, path, **options)

        return self.portal.call(run)

    def open_page(self, sign_in: SignIn, cookie: str = "") -> tuple[str, str]:
        """Open the page of a sign-in. Returns the cookie of the browser and the token of the page."""
        page = self.send("GET", f"/oauth/sign-in?id={sign_in.id}", headers={"cookie": cookie} if cookie else {})
        assert page.status_code == 200 and repr(sign_in.person) in page.text.replace("&#x27;", "'")
        token = re.search('name="token" value="([^"]+)"', page.text)
        assert token
        return page.headers["set-cookie"].partition(";")[0], token[1]

    def press(self, sign_in: SignIn, cookie: str, token: str, **headers: str) -> httpx.Response:
        headers = {"cookie": cookie, "origin": self.base, **headers}
        path = f"/oauth/sign-in?id={sign_in.id}"
        return self.send("POST", path, data={"token": token}, headers={k: v for k, v in headers.items() if v})

    def come_back(self, name: str, cookie: str, **headers: str) -> tuple[int, str | None]:
        """Let a browser come back from the issuer. Returns the status, and the code that the sign-in got."""
        sign_in = getattr(self, name)
        codes: list[str] = []

        async def finish() -> None:
            codes.append((await sign_in.receive_code()).code)
            sign_in.done.set()

        waiting = self.portal.start_task_soon(finish)
        path = f"/oauth/callback?code=c&state=state-of-{name}"
        status = self.send("GET", path, headers={"cookie": cookie, **headers}).status_code
        waiting.cancel()
        return status, codes[0] if codes else None


@pytest.fixture(scope="module")
def portal() -> Iterator[BlockingPortal]:
    with start_blocking_portal() as portal:
        yield portal


@pytest.fixture
def make_site(portal: BlockingPortal) -> Callable[..., Site]:
    return lambda base=BASE: portal.call(Site, portal, base)


MakeSite = Callable[..., Site]


@pytest.mark.parametrize("base", [BASE, "http://127.0.0.1:49200"])
def test_the_button_of_the_page_begins_a_sign_in_and_its_browser_ends_it(make_site: MakeSite, base: str) -> None:
    site = make_site(base)
    cookie, token = site.open_page(site.ann)
    header = site.send("GET", f"/oauth/sign-in?id={site.ann.id}").headers["set-cookie"].lower()
    assert "httponly" in header and "samesite=lax" in header and ("secure" in header) == base.startswith("https")
    assert cookie.startswith("__Host-") == base.startswith("https")
    begun = site.press(site.ann, cookie, token)
    assert (begun.status_code, begun.headers["location"]) == (303, site.ann.url)
    site.ann.done.set()
    assert site.come_back("ann", cookie)[0] == 404  # it was over before
    site = make_site(base)
    cookie, token = site.open_page(site.ann)
    site.open_page(site.ann, cookie)  # a second tab of the same browser
    assert site.press(site.ann, cookie, token, origin="").status_code == 303  # old browsers send no Origin
    assert site.come_back("ann", cookie) == (200, "c")


@pytest.mark.parametrize(
    ("headers", "status"),
    [
        ({"origin": EVIL}, 403),
        ({"origin": "null"}, 403),
        ({"origin": ""}, 303),
        ({"origin": f"{BASE}.evil.example"}, 403),
        ({"origin": f"{BASE}:8443"}, 403),
        ({"origin": f"{BASE}@evil.example"}, 403),
        ({"origin": "http://tools.example.com"}, 403),
        ({"origin": "http://127.0.0.1:9999"}, 403),
        ({"origin": "https://sub.tools.example.com"}, 403),
        ({"origin": "https://tools.example.com:x"}, 403),
        ({"origin": f"{BASE}\xe9"}, 403),
        ({"origin": "http://evil:99999", "host": "127.0.0.1:99999"}, 403),  # neither can be read
        ({"origin": "https://evil:x", "host": "127.0.0.1:x"}, 421),
        ({"origin": "https://127.0.0.1:9999", "host": "127.0.0.1"}, 403),
        ({"origin": "https://127.0.0.1", "host": "127.0.0.1"}, 303),
        ({"origin": f"{BASE}:0"}, 403),
        ({"origin": "", "host": "evil.example"}, 421),
        ({"origin": EVIL, "host": "evil.example"}, 421),
        ({"origin": "http://evil.example", "host": "evil.example:443"}, 421),
        ({"host": f"{HOST}.evil.example"}, 421),
        ({"host": "evil.example/oauth/callback?"}, 421),
        ({"host": "[::1]"}, 421),
        ({"host": ""}, 421),
        ({"sec-fetch-site": "cross-site"}, 403),
        ({"sec-fetch-site": "same-site"}, 403),
        ({"sec-fetch-site": "none"}, 403),
        ({"cookie": ""}, 403),
        ({"cookie": "COOKIEx"}, 403),
        ({"cookie": "toolscout_sign_in=x"}, 403),
        ({"cookie": "COOKIE; y=\xe9"}, 400),
        ({"cookie": "\xff\xfe"}, 400),
    ],
)
def test_a_foreign_page_begins_no_sign_in(make_site: MakeSite, headers: dict[str, str], status: int) -> None:
    site = make_site()
    cookie, token = site.open_page(site.ann)
    sent: dict[str, Any] = {k: v.replace("COOKIE", cookie).encode("latin-1") for k, v in headers.items() if v}
    raw = {"origin": BASE, "cookie": cookie, **sent}
    raw = {key: value for key, value in raw.items() if headers.get(key, "x")}
    if headers.get("host") == "":
        raw["host"] = b""
    answer = site.send("POST", f"/oauth/sign-in?id={site.ann.id}", data={"token": token}, headers=raw)
    assert answer.status_code == status
    assert bool(site.ann.browsers) == (status == 303)


@pytest.mark.parametrize(
    "data", [{}, {"token": ""}, {"token": "guessed"}, {"t": "x", "token": "TOKEN"}, {"token": "\xe9"}]
)
def test_a_page_without_its_token_begins_no_sign_in(make_site: MakeSite, data: dict[str, str]) -> None:
    site = make_site()
    cookie, _ = site.open_page(site.ann)
    answer = site.send(
        "POST", f"/oauth/sign-in?id={site.ann.id}", data=data, headers={"cookie": cookie, "origin": BASE}
    )
    assert answer.status_code == 403 and not site.ann.browsers


def test_tokens_of_others_and_used_ones_begin_no_sign_in(make_site: MakeSite) -> None:
    site = make_site()
    own_cookie, own_token = site.open_page(site.mallory)
    cookie, token = site.open_page(site.ann)
    assert site.press(site.mallory, cookie, token).status_code == 403, "ann's page, for mallory's sign-in"
    assert site.press(site.mallory, cookie, own_token).status_code == 403, "mallory's token in ann's browser"
    assert site.press(site.ann, own_cookie, own_token).status_code == 403
    assert site.press(site.ann, site.open_page(site.ann)[0], token).status_code == 403, "another browser of hers"
    assert not site.ann.browsers and not site.mallory.browsers
    assert site.press(site.ann, cookie, token).status_code == 303
    assert site.press(site.ann, cookie, token).status_code == 403, "a token works once"
    huge = site.send("POST", f"/oauth/sign-in?id={site.ann.id}", content=b"token=" + b"x" * 10_000_000)
    assert huge.status_code == 403


def test_pages_of_others_take_no_room_and_end_the_life_of_none(make_site: MakeSite) -> None:
    site = make_site()
    cookie, token = site.open_page(site.ann)
    for _ in range(300):
        site.ann.open_page("")
    assert not site.ann.pressed and not site.ann.browsers
    assert site.press(site.ann, cookie, token).status_code == 303
    for _ in range(300):
        site.ann.press_button(*site.ann.open_page(""))
    assert len(site.ann.pressed) <= 100 and cookie.partition("=")[2] in site.ann.browsers


def test_a_sign_in_is_found_by_its_state_without_its_address_being_read_again(make_site: MakeSite) -> None:
    site = make_site()
    site.ann.url = site.mallory.url = "https://issuer.example/authorize?state=other"
    assert site.sign_ins.find_by_state("state-of-ann") is site.ann
    assert site.sign_ins.find_by_state("other") is None and site.sign_ins.find_by_state("") is None


def test_another_browser_may_not_come_back(make_site: MakeSite) -> None:
    site = make_site()
    cookie, token = site.open_page(site.mallory)
    assert site.press(site.mallory, cookie, token).status_code == 303
    opened_only, _ = site.open_page(site.mallory)
    name = cookie.partition("=")[0]
    for other in ("", f"{name}=", f"{name}=guessed", opened_only, f"x={cookie.partition('=')[2]}", f'{name}="\\351"'):
        assert site.come_back("mallory", other) == (403, None), other
    assert site.come_back("mallory", f"{name}=\xe9".encode("latin-1")) == (400, None)  # type: ignore[arg-type]
    assert site.come_back("mallory", cookie, origin=EVIL) == (403, None)
    assert site.come_back("mallory", cookie, host="evil.example") == (421, None)
    assert site.come_back("ann", cookie) == (403, None), "the cookie of another sign-in"
    assert site.come_back("mallory", cookie) == (200, "c")


def test_a_rebound_name_reads_nothing(make_site: MakeSite) -> None:
    site = make_site("http://127.0.0.1:49200")
    for path in (f"/oauth/sign-in?id={site.ann.id}", "/oauth/client.json", "/oauth/callback?state=state-of-ann"):
        assert site.send("GET", path, headers={"host": "evil.example:49200"}).status_code == 421
    assert site.send("GET", "/oauth/client.json", headers={"origin": EVIL}).status_code == 200  # it is public
    assert site.send("GET", "/other", headers={"host": "x/oauth/client.json?"}).status_code == 404
