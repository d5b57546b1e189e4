"""Pydantic AI: deferred tools, found by toolscout. The model is a script."""

import tempfile

from pydantic_ai import Agent, Tool
from pydantic_ai.capabilities import ToolSearch
from pydantic_ai.messages import ModelMessage, ModelResponse, TextPart, ToolCallPart
from pydantic_ai.models.function import AgentInfo, FunctionModel

from toolscout import Scout
from toolscout.adapters.pydantic_ai import strategy


def forecast(city: str) -> str:
    """The weather of the coming days in a city."""
    return f"rain in {city}"


def send_mail(to: str, text: str) -> str:
    """Send an electronic letter to somebody."""
    return "sent"


def scripted(messages: list[ModelMessage], info: AgentInfo) -> ModelResponse:
    """Searches, calls what it then sees, and ends."""
    shown = sorted(tool.name for tool in info.function_tools)
    print("shown:", shown)
    if len(messages) == 1:
        return ModelResponse([ToolCallPart("search_tools", {"queries": ["will it rain in the coming days?"]})])
    if len(messages) == 3:
        return ModelResponse([ToolCallPart("forecast", {"city": "Oslo"})])
    return ModelResponse([TextPart(f"The tool said: {messages[-1].parts[-1].content}")])


def main() -> None:
    with tempfile.TemporaryDirectory() as home, Scout(home) as scout:
        deferred = [Tool(each, defer_loading=True) for each in (forecast, send_mail)]
        search = ToolSearch(strategy=strategy(scout, k=1))
        agent = Agent(FunctionModel(scripted), tools=deferred, capabilities=[search])
        print(agent.run_sync("Do I need an umbrella in Oslo?").output)


if __name__ == "__main__":
    main()
