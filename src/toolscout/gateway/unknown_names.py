"""Says which names in the options and files of a gateway belong to no tool, once its servers have listed theirs."""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING

from toolscout.checks.references import explain_unknown, list_policy_names, list_profile_names, list_setting_names
from toolscout.errors import UserError

if TYPE_CHECKING:
    from toolscout.gateway.server import Gateway

__all__ = ["say_unknown_names"]

LISTED_POLL_S = 0.2


async def say_unknown_names(gateway: Gateway) -> None:
    """Say which pins, patterns and other names belong to no tool. Those of a server without tools are not judged."""
    import anyio

    upstreams, scout = gateway.upstreams, gateway.scout
    await anyio.sleep(LISTED_POLL_S)  # until the task of the servers runs
    await upstreams.wait_planned()
    with anyio.move_on_after(scout.settings.mcp_timeout):
        while upstreams.count_unlisted():
            await anyio.sleep(LISTED_POLL_S)
    try:
        references = [
            *list_setting_names(scout.settings, gateway.options.pins),
            *list_policy_names(gateway.policies.callers),
            *list_profile_names(gateway.profiles.all),
        ]
        sources = await upstreams.run_in_thread(scout.sources)
        awaited = set(upstreams.servers) - {source.name for source in sources if source.tools}
        explain = functools.partial(explain_unknown, scout, references, awaited)
        for sentence in await upstreams.run_in_thread(explain):
            gateway.say(sentence)
    except UserError as error:
        gateway.say(str(error))
