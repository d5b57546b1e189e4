"""Says which names in the options and files of a gateway belong to no tool, once its servers have listed theirs."""

from __future__ import annotations

import functools
import logging
from collections.abc import Sequence
from typing import Final

from toolscout.checks.references import explain_unknown, list_policy_names, list_profile_names, list_setting_names
from toolscout.errors import StoreError, UserError
from toolscout.home.access.profiles import Profile
from toolscout.trust.policy import Caller
from toolscout_gateway.upstreams import Upstreams

__all__ = ["say_unknown_names"]

LISTED_POLL_S = 0.2
_log: Final = logging.getLogger("toolscout.gateway.unknown_names")


async def say_unknown_names(
    upstreams: Upstreams, pins: Sequence[str], callers: Sequence[Caller], profiles: Sequence[Profile]
) -> None:
    """Say which pins, patterns and other names belong to no tool. Those of a server without tools are not judged."""
    import anyio

    scout = upstreams.scout
    await anyio.sleep(LISTED_POLL_S)  # until the task of the servers runs
    await upstreams.wait_planned()
    with anyio.move_on_after(scout.settings.mcp_timeout):
        while upstreams.count_unlisted():
            await anyio.sleep(LISTED_POLL_S)
    try:
        references = [
            *list_setting_names(scout.settings, pins),
            *list_policy_names(callers),
            *list_profile_names(profiles),
        ]
        sources = await upstreams.run_in_thread(scout.sources)
        awaited = set(upstreams.servers) - {source.name for source in sources if source.tools}
        explain = functools.partial(explain_unknown, scout, references, awaited)
        for sentence in await upstreams.run_in_thread(explain):
            upstreams.say(sentence)
    except StoreError as error:
        _log.info("Names are not checked: %s", error)  # what follows the home says so
    except UserError as error:
        upstreams.say(str(error))
