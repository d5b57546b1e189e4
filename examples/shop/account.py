"""The bookshop as an MCP server whose users sign in: the example of the pages on sign-ins. It believes every name.

python examples/shop/account.py                     serve it, and its sign-in, on port 8767
python examples/shop/account.py --as NAME LINK      do what NAME would do in a browser: open the link, press its button

A real server has an identity provider that asks for a password. This one signs in whoever the cookie `user` names. It
also knows a program, `toolscout`, which may bring the name of a user as the assertion of a company (ID-JAG).
"""

import argparse
import html
import re
import secrets
import time
from urllib.parse import urlencode, urlsplit

import httpx
from mcp.server import MCPServer
from mcp.server.auth.middleware.auth_context import get_access_token
from mcp.server.auth.provider import (
    AccessToken,
    AuthorizationCode,
    AuthorizationParams,
    IdentityAssertionParams,
    RefreshToken,
)
from mcp.server.auth.settings import AuthSettings, ClientRegistrationOptions
from mcp.shared.auth import JWT_BEARER_GRANT_TYPE, OAuthClientInformationFull, OAuthToken
from mcp.types import ToolAnnotations
from starlette.requests import Request
from starlette.responses import RedirectResponse, Response


class ShopAccounts:
    """Signs users in and remembers their tokens, in memory. The methods are those that the MCP SDK asks for."""

    def __init__(self, base: str) -> None:
        self.base = base
        program = OAuthClientInformationFull(
            client_id="toolscout", client_secret="only-for-this-example", redirect_uris=None,
            grant_types=[JWT_BEARER_GRANT_TYPE], token_endpoint_auth_method="client_secret_post",
        )  # fmt: skip
        self.clients = {"toolscout": program}
        self.tickets: dict[str, tuple[OAuthClientInformationFull, AuthorizationParams]] = {}
        self.codes: dict[str, tuple[AuthorizationCode, str]] = {}
        self.tokens: dict[str, tuple[AccessToken, str]] = {}

    async def get_client(self, client_id: str) -> OAuthClientInformationFull | None:
        return self.clients.get(client_id)

    async def register_client(self, client_info: OAuthClientInformationFull) -> None:
        self.clients[str(client_info.client_id)] = client_info

    async def authorize(self, client: OAuthClientInformationFull, params: AuthorizationParams) -> str:
        ticket = secrets.token_urlsafe()
        self.tickets[ticket] = client, params
        return f"{self.base}/login?ticket={ticket}"

    async def log_in(self, request: Request) -> Response:
        """Sign in the user of the cookie, and send the browser back to the gateway with a code."""
        client, params = self.tickets.pop(request.query_params["ticket"])
        code = AuthorizationCode(
            code=secrets.token_urlsafe(), scopes=params.scopes or [], expires_at=time.time() + 60,
            client_id=str(client.client_id), code_challenge=params.code_challenge, redirect_uri=params.redirect_uri,
            redirect_uri_provided_explicitly=params.redirect_uri_provided_explicitly, resource=params.resource,
        )  # fmt: skip
        self.codes[code.code] = code, request.cookies["user"]
        return RedirectResponse(f"{params.redirect_uri}?{urlencode({'code': code.code, 'state': params.state})}")

    async def load_authorization_code(self, client: object, authorization_code: str) -> AuthorizationCode | None:
        return self.codes[authorization_code][0] if authorization_code in self.codes else None

    async def exchange_authorization_code(self, client: object, authorization_code: AuthorizationCode) -> OAuthToken:
        code, user = self.codes.pop(authorization_code.code)
        return self.make_token(user, code.client_id, code.scopes, code.resource)

    async def exchange_identity_assertion(
        self, client: OAuthClientInformationFull, params: IdentityAssertionParams
    ) -> OAuthToken:
        """Believe the company. A real issuer checks the signature of the assertion, which is a JWT."""
        return self.make_token(params.assertion, str(client.client_id), params.scopes or [], params.resource)

    def make_token(self, user: str, client_id: str, scopes: list[str], resource: str | None) -> OAuthToken:
        token = AccessToken(
            token=secrets.token_urlsafe(), client_id=client_id, scopes=scopes, resource=resource,
            expires_at=int(time.time()) + 3600,
        )  # fmt: skip
        self.tokens[token.token] = token, user
        return OAuthToken(access_token=token.token, expires_in=3600)

    async def load_access_token(self, token: str) -> AccessToken | None:
        return self.tokens[token][0] if token in self.tokens else None

    async def load_refresh_token(self, client: object, refresh_token: str) -> RefreshToken | None:
        return None  # after an hour, users sign in again


def serve(port: int) -> None:
    """Serve a tool that says whose account it is."""
    base = f"http://127.0.0.1:{port}"
    sign_in = ShopAccounts(base)
    server = MCPServer(
        "account",
        log_level="ERROR",
        auth_server_provider=sign_in,  # type: ignore[arg-type]
        auth=AuthSettings(
            issuer_url=base,  # type: ignore[arg-type]
            resource_server_url=f"{base}/mcp",  # type: ignore[arg-type]
            validate_token_resource=True,
            client_registration_options=ClientRegistrationOptions(enabled=True),
            identity_assertion_enabled=True,
        ),
    )

    @server.tool(annotations=ToolAnnotations(read_only_hint=True))
    def show_account() -> str:
        """Show whose account this is."""
        token = get_access_token()
        return f"the account of {sign_in.tokens[token.token][1] if token else 'nobody'}"

    server.custom_route("/login", methods=["GET"])(sign_in.log_in)
    server.run("streamable-http", port=port)


def press(link: str, user: str) -> None:
    """Open the gateway's page, press its button, and follow where the sign-in leads."""
    with httpx.Client(follow_redirects=True, cookies={"user": user}) as browser:
        page = browser.get(link).text
        action, token = (page.partition(f'{name}="')[2].partition('"')[0] for name in ("action", "value"))
        parts = urlsplit(link)
        own = f"{parts.scheme}://{parts.netloc}"
        done = browser.post(own + action, data={"token": token}, headers={"origin": own}).text
        for text in (page, done):
            shown = re.sub("<button>(.*?)</button>", r"[\1]", re.sub("<title>.*?</title>", "", text))
            print(" ".join(html.unescape(re.sub("<[^>]*>", " ", shown)).split()))


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("link", nargs="?")
    parser.add_argument("--as", dest="user", default="ann")
    parser.add_argument("--port", type=int, default=8767)
    options = parser.parse_args()
    if options.link:
        press(options.link, options.user)
    else:
        serve(options.port)
