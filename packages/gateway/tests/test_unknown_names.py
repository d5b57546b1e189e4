"""A gateway says which of its pins and patterns name no tool, once its servers have listed theirs."""

from __future__ import annotations

import anyio
import pytest

from gateway.tests.conftest import Start, busy
from toolscout.trust.policy import Caller, Policies, Rules

pytestmark = pytest.mark.net
PINS = ("a/echo", "a/ehco", "broken/tool", "nonesuch")


def test_a_gateway_says_which_pins_and_patterns_name_no_tool(start: Start) -> None:
    rules = Rules(frozenset({"a/**", "b/**"}))
    policies = Policies((Caller("ann", rules),), default=Caller("ann", rules))
    entries = {"a": busy(), "broken": {"command": "no-such-program"}}

    async def main() -> None:
        async with start(entries, policies=policies, pins=PINS) as agent:
            with anyio.fail_after(30):
                while sum("no tool" in text for text in agent.said) < 3:
                    await anyio.sleep(0.05)
            assert [text for text in agent.said if "no tool" in text] == [
                "A pin names 'a/ehco', but no tool has this id. Did you mean 'a/echo'?",
                "A pin names 'nonesuch', but no tool has this id. See  toolscout list",
                "The policy of 'ann' allows 'b/**', but no tool matches this pattern. See  toolscout list",
            ]

    anyio.run(main)
