"""LangChain and LangGraph: a middleware that shows the model only the tools that the last request needs.

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
    """`ToolChoice`, made when it is first asked for: its base class is LangChain's."""
    if name != "ToolChoice":
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    globals()[name] = made = _tool_choice()
    return made


def _tool_choice() -> type:
    middleware: Any = require("langchain.agents.middleware", "adapters")

    class ToolChoice(middleware.AgentMiddleware):  # type: ignore[misc]
        """Narrows `request.tools`; tools of the provider itself, and those named in `always`, stay."""

        def __init__(
            self,
            scout: Scout,
            *,
            source: str = "langchain",
            k: int | None = None,
            caller: str | None = None,
            always: Container[str] = (),
        ) -> None:
            super().__init__()
            self._chooser, self._always = Chooser(scout, source, k=k, caller=caller), always

        def wrap_model_call(self, request: Any, handler: Callable[[Any], Any]) -> Any:
            """Narrow the tools, then ask the model."""
            return handler(self._narrowed(request))

        async def awrap_model_call(self, request: Any, handler: Callable[[Any], Awaitable[Any]]) -> Any:
            """The same for asynchronous agents."""
            return await handler(await asyncio.to_thread(self._narrowed, request))

        def _narrowed(self, request: Any) -> Any:
            asked = [message.text for message in request.messages if message.type == "human"]
            own = [tool for tool in request.tools if not isinstance(tool, dict) and tool.name not in self._always]
            if not asked or not own:
                return request
            offered = [
                {"name": tool.name, "description": tool.description, "parameters": tool.tool_call_schema}
                for tool in own
            ]
            for each in offered:
                if not isinstance(each["parameters"], dict):
                    each["parameters"] = each["parameters"].model_json_schema()
            chosen = set(self._chooser.choose(asked[-1:], offered))
            kept = [tool for tool in request.tools if tool not in own or tool.name in chosen]
            return request.override(tools=kept)

    return ToolChoice
