"""Anthropic: all tools deferred, our search in the place of theirs. The API is played by a script."""

import json
import tempfile
import time

import anthropic
import httpx2

from toolscout import Scout
from toolscout.adapters import Toolbox
from toolscout.adapters.anthropic import results, searches, tools


def forecast(city: str) -> str:
    """The weather of the coming days in a city."""
    return f"rain in {city}"


def send_mail(to: str, text: str) -> str:
    """Send an electronic letter to somebody."""
    return "sent"


FUNCTIONS = {"forecast": forecast, "send_mail": send_mail}


def played(request: httpx2.Request) -> httpx2.Response:
    """What the API would answer: a search, then a call of what the search loaded, then the end."""
    body = json.loads(request.content)
    deferred = {tool["name"] for tool in body["tools"] if tool.get("defer_loading")}
    last = body["messages"][-1]["content"]
    if isinstance(last, str):
        content = [{"type": "tool_use", "id": "t1", "name": "search_tools", "input": {"query": "will it rain?"}}]
    elif isinstance(last[0]["content"], list):
        names = [block["tool_name"] for block in last[0]["content"] if block["type"] == "tool_reference"]
        assert set(names) <= deferred, "a reference must name a deferred tool of this request"
        content = [{"type": "tool_use", "id": "t2", "name": names[0], "input": {"city": "Oslo"}}]
    else:
        content = [{"type": "text", "text": f"The tool said: {last[0]['content']}"}]
    stop = "end_turn" if content[0]["type"] == "text" else "tool_use"
    usage = {"input_tokens": 1, "output_tokens": 1}
    message = {"id": "m", "type": "message", "role": "assistant", "model": body["model"], "content": content}
    return httpx2.Response(200, json={**message, "stop_reason": stop, "stop_sequence": None, "usage": usage})


def main() -> None:
    with tempfile.TemporaryDirectory() as home, Scout(home) as scout:
        scout.add(FUNCTIONS.values(), name="mine")
        box = Toolbox(scout, caller="example")
        client = anthropic.Anthropic(api_key="none", http_client=httpx2.Client(transport=httpx2.MockTransport(played)))
        messages = [{"role": "user", "content": "Do I need an umbrella in Oslo?"}]
        while True:
            answer = client.messages.create(
                model="claude-sonnet-4-6", max_tokens=500, tools=tools(box), messages=messages
            )
            if answer.stop_reason != "tool_use":
                break
            messages.append({"role": "assistant", "content": [block.model_dump() for block in answer.content]})
            made = []
            for block in answer.content:
                if searches(block):
                    made.append(results(box, block))
                elif block.type == "tool_use":
                    started = time.perf_counter()
                    value = FUNCTIONS[box.tool(block.name).name](**block.input)
                    box.record_call(block.name, ok=True, ms=(time.perf_counter() - started) * 1000)
                    made.append({"type": "tool_result", "tool_use_id": block.id, "content": value})
            messages.append({"role": "user", "content": made})
        print(answer.content[0].text)
        print("learned from:", scout.journal.stats()["searches_followed_by_a_successful_call"], "search")


if __name__ == "__main__":
    main()
