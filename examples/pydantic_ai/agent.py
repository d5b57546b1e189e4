"""Pydantic AI: tools are deferred, and toolscout is the strategy that finds them."""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))

# --- copy from here ---------------------------------------------------------------------------------------------------
from office import QUESTION, TOOLS
from pydantic_ai import Agent, Tool
from pydantic_ai.capabilities import ToolSearch

from toolscout import Scout
from toolscout.adapters.pydantic_ai import strategy

agent = Agent(
    "openai-chat:gpt-5.4",
    tools=[Tool(function, defer_loading=True) for function in TOOLS],
    capabilities=[ToolSearch(strategy=strategy(Scout("my-tools"), k=1))],
)
print(agent.run_sync(QUESTION).output)
