"""LangGraph: a middleware shows the model only the tools that the last request needs."""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))

# --- copy from here ---------------------------------------------------------------------------------------------------
from langchain.agents import create_agent
from langchain_core.tools import tool
from office import QUESTION, TOOLS

from toolscout import Scout
from toolscout.adapters.langchain import ToolChoice

agent = create_agent(
    "openai:gpt-5.4",
    [tool(function) for function in TOOLS],
    middleware=[ToolChoice(Scout("my-tools"), k=1)],
)
print(agent.invoke({"messages": [("user", QUESTION)]})["messages"][-1].content)
