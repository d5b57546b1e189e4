"""Says who sends a request, with which rights, and whether it is within the limits of size and rate."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any, Final

import msgspec

from toolscout.errors import Denied
from toolscout.home.access.http import Buckets
from toolscout.home.access.live_policy import LivePolicies
from toolscout.home.access.profiles import Profiles
from toolscout.trust.policy import Caller, Policies, Rules

if TYPE_CHECKING:
    from mcp.server.context import ServerRequestContext

__all__ = ["CALLER", "CREDENTIAL", "PATH", "PROFILE_PATH", "Permissions"]

CALLER: Final = "toolscout.caller"  # key of the caller in the ASGI scope of a request
CREDENTIAL: Final = "toolscout.credential"  # key of what the caller came with
PATH: Final = "/mcp"
PROFILE_PATH: Final = f"{PATH}/p/"  # followed by the name of a profile
MAX_QUERY_CHARS: Final = 4_000
MAX_ARGUMENT_BYTES: Final = 1_000_000


class Permissions:
    """The callers of a gateway and their limits. The policy is read again at each request.

    Attributes:
        policies: who may do what.
        profiles: parts of the tools that callers can choose.
        credential: the key or token of the caller on stdio.
        buckets: bounds the rate of each caller.
    """

    def __init__(
        self,
        rate: float,
        policies: Policies | LivePolicies,
        profiles: Profiles,
        *,
        credential: str | None = None,
        profile: str = "",
    ) -> None:
        """Know the callers of a gateway.

        Args:
            rate: requests a second that each may send. 0: as many as they want.
            policies: who may do what.
            profiles: parts of the tools.
            credential: the key or token of the caller on stdio.
            profile: the name of the profile that the caller on stdio uses. Empty: none.
        """
        self.policies, self.profiles, self.credential = policies, profiles, credential
        self.buckets = Buckets(rate or None)
        self._profile = profile
        self._speaker: Caller | None = None  # the caller on stdio, by the policies of this version
        self._speaker_version = 0

    def get_caller(self, context: ServerRequestContext[Any, Any]) -> Caller:
        """Return the caller of a request."""
        scope = getattr(context.request, "scope", None)
        if isinstance(scope, dict) and CALLER in scope:
            caller: Caller = scope[CALLER]
            return caller
        if not self._profile:
            return self.speaker
        profile = self.profiles.find(self._profile)
        return profile.narrow(self.speaker) if profile else Caller(self.speaker.name, Rules())  # it was removed

    @property
    def speaker(self) -> Caller:
        """The caller on stdio. One who had access and lost it sees nothing any more.

        Raises:
            Denied: if the credential was never valid.
        """
        version = getattr(self.policies, "version", 0)
        if self._speaker is None or self._speaker_version != version:
            try:
                self._speaker = self.policies.caller(self.credential)
            except Denied:
                if self._speaker is None:
                    raise
                self._speaker = Caller(self._speaker.name, Rules())
            self._speaker_version = version
        return self._speaker

    @speaker.setter
    def speaker(self, caller: Caller) -> None:
        self._speaker, self._speaker_version = caller, getattr(self.policies, "version", 0)

    def check_size(self, arguments: dict[str, object]) -> str:
        """Check the size of arguments. Returns a sentence on what to do, empty if all is well."""
        size = len(msgspec.json.encode(arguments))
        if size <= MAX_ARGUMENT_BYTES:
            return ""
        return f"expected arguments of at most {MAX_ARGUMENT_BYTES:,} bytes, found {size:,}: send less at once"

    def check_queries(self, queries: object) -> str:
        """Check the lengths of queries. Returns a sentence on what to do, empty if all is well."""
        lengths = [len(query) for query in queries if isinstance(query, str)] if isinstance(queries, list) else []
        longest = max(lengths, default=0)
        if longest <= MAX_QUERY_CHARS:
            return ""
        return (
            f"expected a query of at most {MAX_QUERY_CHARS:,} characters, found {longest:,}: "
            "describe in one sentence what the tool must do"
        )

    def check_rate(self, caller: Caller, cost: int) -> str:
        """Check the rate of a caller's requests. Returns a sentence on what to do, empty if all is well."""
        rate = self.buckets.rate
        if rate is not None and (wait := self.buckets.take(caller.name, cost)):
            return f"You sent more than {rate:g} requests a second: try again in {math.ceil(wait)} s."
        return ""
