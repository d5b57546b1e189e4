"""Serves several tenants of a home at one address: the key of a request says to which tenant it goes.

A key is in the policy of one tenant. No header, path or parameter names a tenant, so nobody chooses one whose key they
do not have. The application of a tenant then checks the key again. Requests without a key go to the tenant `default`.
"""

from __future__ import annotations

import contextlib
import functools
from collections.abc import AsyncIterator, Callable
from typing import TYPE_CHECKING, Final

from toolscout.errors import Denied, UserError
from toolscout.home.access.http import build_challenge, credential_of
from toolscout.home.access.live_policy import POLICY_FILE, LivePolicies
from toolscout.home.database import open_home
from toolscout.location import DEFAULT_TENANT, Home, local_folder, place_tenant
from toolscout.trust.policy import LOCAL, UNKNOWN_CREDENTIAL, ScopeMissing

if TYPE_CHECKING:
    import anyio
    from starlette.types import ASGIApp, Message, Receive, Scope, Send

__all__ = ["TenantApp", "TenantKeys"]

LOOK_AGAIN_S: Final = 1.0  # between two looks at the list of tenants and their policies
RETRY_OPEN_S: Final = 30.0  # before a tenant that could not be opened is tried again
OpenTenant = Callable[[str, LivePolicies], contextlib.AbstractAsyncContextManager["ASGIApp"]]


class TenantKeys:
    """Knows the tenants of a home and their policies, and finds the tenant to whom a key belongs.

    Attributes:
        policies: tenant → its policies.
    """

    def __init__(self, root: Home, say: Callable[[str], None]) -> None:
        """Read the tenants and their policies.

        Args:
            root: the home of the tenant `default`.
            say: receives a sentence when a policy changes or cannot be used.

        Raises:
            ConfigError: if the policy of the tenant `default` is invalid.
            StoreError: if the database does not answer.
        """
        self.root, self.say = root, say
        self.policies = {DEFAULT_TENANT: self._load(DEFAULT_TENANT)}
        self._problems: dict[str, str] = {}  # subject → the problem that was said last; see `_say_once`
        self.refresh()

    def _load(self, tenant: str) -> LivePolicies:
        """Read the policies of a tenant."""
        home = place_tenant(self.root, tenant)
        return LivePolicies(local_folder(home) / POLICY_FILE, is_required=False, home=home)

    def refresh(self) -> None:
        """Read the list of tenants again, and the policies that changed.

        If the list cannot be read, all stay as they are. A new tenant with an invalid policy gets no requests until it
        is valid; the others are served.
        """
        try:
            names = {tenant.name for tenant in open_home(self.root).list_tenants()}
        except UserError as error:
            self._say_once("list", str(error))
            return
        self._say_once("list", "")
        for name in self.policies.keys() - names:
            del self.policies[name]
            open_home(place_tenant(self.root, name)).close()
        for name in sorted(names):
            try:
                if name not in self.policies:
                    self.policies[name] = self._load(name)
                self.policies[name].refresh(functools.partial(self._say_about, name))
                self._say_once(f"tenant {name}", "")
            except UserError as error:
                self._say_once(f"tenant {name}", f"tenant {name}: {error}")

    def _say_about(self, tenant: str, text: str) -> None:
        self.say(f"tenant {tenant}: {text}")

    def _say_once(self, subject: str, problem: str) -> None:
        """Say a problem, unless it was the last one of its subject. Empty: the subject has no problem any more."""
        if problem and self._problems.get(subject) != problem:
            self.say(problem)
        self._problems[subject] = problem

    @property
    def waits(self) -> bool:
        """Whether `find` may have to wait for the issuer of tokens."""
        return any(policies.waits for policies in self.policies.values())

    def find(self, credential: str | None) -> str:
        """Return the tenant to whom a key or token belongs; without one `default`.

        Raises:
            Denied: if it belongs to no tenant, or to several. The message is the same.
        """
        if credential is None:
            return DEFAULT_TENANT
        owners = [name for name, policies in list(self.policies.items()) if _knows(policies, credential)]
        if len(owners) > 1:
            self._say_once(
                "keys", f"One key is in the policies of several tenants, and opens none: {', '.join(owners)}"
            )
        if len(owners) != 1:
            raise Denied(UNKNOWN_CREDENTIAL)
        return owners[0]


def _knows(policies: LivePolicies, credential: str) -> bool:
    """Return whether a key belongs to a caller of these policies. A tenant without rules knows nobody."""
    if policies.default is LOCAL:
        return False
    try:
        policies.caller(credential)
    except ScopeMissing:
        return True  # the tenant says which scope is missing
    except Denied:
        return False
    return True


class TenantApp:
    """ASGI application that passes each request to the application of the caller's tenant.

    Tenants that are added later are served too, and removed ones no longer. One that cannot be opened is left out.
    """

    def __init__(
        self, keys: TenantKeys, open_tenant: OpenTenant, find_open: Callable[[Scope], str] = lambda scope: ""
    ) -> None:
        """Serve the tenants that `keys` knows.

        Args:
            keys: finds the tenant to whom a key belongs.
            open_tenant: opens the application of a tenant, with its policies.
            find_open: returns the tenant of a request that needs no key; empty: the request is for no certain tenant.
        """
        self.keys, self._open_tenant, self._find_open = keys, open_tenant, find_open
        self._apps: dict[str, ASGIApp] = {}  # tenant → its application
        self._ends: dict[str, anyio.Event] = {}  # tenant → set when its application shall close
        self._failed: dict[str, float] = {}  # tenant → instant of the failure that closed it or kept it closed

    @contextlib.asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        """Serve inside this context.

        Raises:
            UserError: if the tenant `default` cannot be opened.
        """
        import anyio

        ending = anyio.Event()
        async with anyio.create_task_group() as group:
            await self._open_new(group, ending)
            group.start_soon(self._follow, group, ending)
            try:
                yield
            finally:
                ending.set()
                for end in list(self._ends.values()):
                    end.set()

    async def _follow(self, group: anyio.abc.TaskGroup, ending: anyio.Event) -> None:
        """Open the tenants that were added, and close those that were removed, until the end."""
        import anyio

        while not ending.is_set():
            with anyio.move_on_after(LOOK_AGAIN_S):  # wait so long, or return as soon as all ends
                await ending.wait()
                return
            await anyio.to_thread.run_sync(self.keys.refresh)
            for name in self._ends.keys() - self.keys.policies.keys():
                self._apps.pop(name, None)
                self._ends[name].set()
            await self._open_new(group, ending)

    async def _open_new(self, group: anyio.abc.TaskGroup, ending: anyio.Event) -> None:
        """Open the tenants that are not open, `default` first. Once `ending` is set, none is opened any more.

        Raises:
            UserError: if the tenant `default` cannot be opened. Any other one is tried again later.
        """
        import anyio

        now = anyio.current_time()
        for name in sorted(self.keys.policies, key=lambda name: (name != DEFAULT_TENANT, name)):
            failed_recently = now - self._failed.get(name, float("-inf")) < RETRY_OPEN_S
            if ending.is_set() or name in self._ends or failed_recently:
                continue
            try:
                end = anyio.Event()
                await group.start(self._serve_tenant, name, end)
                if ending.is_set():  # while it was opened; `running` has not known its `end`
                    end.set()
                self._failed.pop(name, None)
            except UserError as error:
                if name == DEFAULT_TENANT:
                    raise
                self._failed[name] = now
                self.keys.say(f"tenant {name} is not served: {error}")

    async def _serve_tenant(self, name: str, end: anyio.Event, *, task_status: anyio.abc.TaskStatus[None]) -> None:
        """Keep the application of a tenant open until `end`. If it fails later, the others go on."""
        import anyio

        try:
            async with self._open_tenant(name, self.keys.policies[name]) as application, _run_lifespan(application):
                self._apps[name], self._ends[name] = application, end
                task_status.started()
                await end.wait()
        except Exception as error:
            if name not in self._ends:  # it was not open yet: `_open_new` gets the error
                raise
            self._failed[name] = anyio.current_time()
            self.keys.say(f"tenant {name} is not served any more: {error}")
        finally:
            self._apps.pop(name, None)
            self._ends.pop(name, None)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass a request to the application of its tenant. Other kinds of ASGI connections are ignored."""
        import anyio
        from starlette.datastructures import Headers
        from starlette.responses import JSONResponse

        if scope["type"] != "http":
            return
        credential = credential_of(Headers(scope=scope))
        try:
            if self.keys.waits:
                name = await anyio.to_thread.run_sync(self.keys.find, credential)
            else:
                name = self.keys.find(credential)
            if credential is None:
                name = self._find_open(scope) or name
        except Denied as error:
            challenge = build_challenge("invalid_token")
            await JSONResponse({"error": str(error)}, 401, {"WWW-Authenticate": challenge})(scope, receive, send)
            return
        application = self._apps.get(name)
        if application is None:
            message = "This catalogue cannot be served now. Try again later."
            await JSONResponse({"error": message}, 503, {"Retry-After": "30"})(scope, receive, send)
            return
        await application(scope, receive, send)


async def _run_application(application: ASGIApp, scope: Scope, receive: Receive, send: Send) -> None:
    """Call an application: a task group takes only coroutine functions, which an `ASGIApp` need not be."""
    await application(scope, receive, send)


@contextlib.asynccontextmanager
async def _run_lifespan(application: ASGIApp) -> AsyncIterator[None]:
    """Send an application the event for its start before this context, and for its end after it (ASGI lifespan)."""
    import anyio

    started, ending, stopped = anyio.Event(), anyio.Event(), anyio.Event()

    async def receive() -> Message:
        if not started.is_set():
            return {"type": "lifespan.startup"}
        await ending.wait()
        return {"type": "lifespan.shutdown"}

    async def send(message: Message) -> None:
        # the application answers `lifespan.startup.complete`, `….failed`, or the same for `lifespan.shutdown`
        (started if message["type"].startswith("lifespan.startup") else stopped).set()

    async with anyio.create_task_group() as group:
        scope: Scope = {"type": "lifespan", "asgi": {"version": "3.0"}, "state": {}}
        group.start_soon(_run_application, application, scope, receive, send)
        await started.wait()
        try:
            yield
        finally:
            ending.set()
            with anyio.CancelScope(shield=True):
                await stopped.wait()
