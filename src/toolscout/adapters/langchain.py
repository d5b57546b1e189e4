"""LangChain and LangGraph: a middleware that shows the model only the tools for the last request.

::

    agent = create_agent(model, tools, middleware=[ToolChoice(scout, always=("ask_human",))])
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Container
from typing import Any

from toolscout.adapters import Chooser
from toolscout.errors import require
from toolscout.scout import Scout


def __getattr__(name: str) -> Any:
    """Create `ToolChoice` at its first use, because its base class comes from LangChain."""
    if name != "ToolChoice":
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    globals()[name] = middleware = _make_tool_choice()
    return middleware


def _make_tool_choice() -> type:
    """Make the class `ToolChoice`."""
    middleware: Any = require("langchain.agents.middleware", "adapters")

    class ToolChoice(middleware.AgentMiddleware):  # type: ignore[misc]
        """Shows the model only the tools that fit the request. The provider's own tools and those in `always` stay."""

        def __init__(
            self,
            scout: Scout,
            *,
            source: str = "langchain",
            k: int | None = None,
            caller: str | None = None,
            always: Container[str] = (),
        ) -> None:
            """Choose among the tools of an agent.

            Args:
                scout: provides the catalogue and the journal.
                source: name of the source under which the agent's tools are in the catalogue.
                k: tools per request; None: the scout's default.
                caller: name of the caller for the journal.
                always: names of tools that the model sees with every request, besides the chosen ones.
            """
            super().__init__()
            self._chooser, self._always = Chooser(scout, source, k=k, caller=caller), always

        def wrap_model_call(self, request: Any, handler: Callable[[Any], Any]) -> Any:
            """Narrow the tools, then call the model."""
            return handler(self._narrow_tools(request))

        async def awrap_model_call(self, request: Any, handler: Callable[[Any], Awaitable[Any]]) -> Any:
            """Narrow the tools, then call the model, for asynchronous agents."""
            return await handler(await asyncio.to_thread(self._narrow_tools, request))

        def _narrow_tools(self, request: Any) -> Any:
            """Return the request with the tools that fit its last human message, and those that are always shown.

            Earlier messages are not searched for, because they have been answered. Tools of the provider are
            dictionaries, and stay.
            """
            queries = [message.text for message in request.messages if message.type == "human"]
            candidates = [
                tool for tool in request.tools if not isinstance(tool, dict) and tool.name not in self._always
            ]
            if not queries or not candidates:
                return request
            offered = [
                {"name": tool.name, "description": tool.description, "parameters": tool.tool_call_schema}
                for tool in candidates
            ]
            for definition in offered:
                if not isinstance(definition["parameters"], dict):  # a model of Pydantic
                    definition["parameters"] = definition["parameters"].model_json_schema()
            chosen_names = set(self._chooser.choose(queries[-1:], offered))
            tools = [tool for tool in request.tools if tool not in candidates or tool.name in chosen_names]
            return request.override(tools=tools)

    return ToolChoice
