"""LangChain and LangGraph: the model sees only the tools that the last request needs. The model is a script."""

import tempfile
from collections.abc import Sequence
from typing import Any

from langchain.agents import create_agent
from langchain_core.language_models.fake_chat_models import GenericFakeChatModel
from langchain_core.messages import AIMessage
from langchain_core.tools import tool

from toolscout import Scout
from toolscout.adapters.langchain import ToolChoice


@tool
def forecast(city: str) -> str:
    """The weather of the coming days in a city."""
    return f"rain in {city}"


@tool
def send_mail(to: str, text: str) -> str:
    """Send an electronic letter to somebody."""
    return "sent"


@tool
def ask_human(question: str) -> str:
    """Ask the person at the keyboard."""
    return "yes"


class Scripted(GenericFakeChatModel):
    """Calls the forecast, then says what it said; and says which tools it was shown."""

    def bind_tools(self, tools: Sequence[Any], **options: Any) -> "Scripted":
        print("shown:", sorted(each.name for each in tools))
        return self


def main() -> None:
    with tempfile.TemporaryDirectory() as home, Scout(home) as scout:
        call = {"name": "forecast", "args": {"city": "Oslo"}, "id": "c1"}
        model = Scripted(messages=iter([AIMessage("", tool_calls=[call]), AIMessage("Take an umbrella.")]))
        choice = ToolChoice(scout, k=1, always=("ask_human",))
        agent = create_agent(model, [forecast, send_mail, ask_human], middleware=[choice])
        done = agent.invoke({"messages": [("user", "Will it rain in Oslo in the coming days?")]})
        print(done["messages"][-2].content, "->", done["messages"][-1].content)


if __name__ == "__main__":
    main()
