"""OpenAI: the client-executed tool search of Responses, and a short `tools` list. The API is played by a script."""

import json
import tempfile

import httpx2
import openai

from toolscout import Scout
from toolscout.adapters import Toolbox
from toolscout.adapters.openai import output, search_tool, searches, select_tools


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
    assert body["tools"][0]["type"] == "tool_search" and body["tools"][0]["execution"] == "client"
    last = body["input"][-1]
    if last.get("role") == "user":
        item = {"type": "tool_search_call", "id": "s1", "call_id": "c1", "execution": "client", "status": "completed"}
        item["arguments"] = {"query": "will it rain?"}
    elif last["type"] == "tool_search_output":
        name = last["tools"][0]["name"]
        item = {"type": "function_call", "id": "f1", "call_id": "c2", "name": name, "arguments": '{"city": "Oslo"}'}
    else:
        text = {"type": "output_text", "text": f"The tool said: {last['output']}", "annotations": []}
        item = {"type": "message", "id": "m1", "role": "assistant", "status": "completed", "content": [text]}
    head = {"id": "r", "object": "response", "created_at": 0, "model": body["model"], "output": [item]}
    rest = {"parallel_tool_calls": True, "tool_choice": "auto", "tools": []}
    return httpx2.Response(200, json={**head, **rest})


def main() -> None:
    with tempfile.TemporaryDirectory() as home, Scout(home) as scout:
        scout.add(FUNCTIONS.values(), name="mine")
        box = Toolbox(scout, k=1, caller="example")
        client = openai.OpenAI(api_key="none", http_client=httpx2.Client(transport=httpx2.MockTransport(played)))
        items = [{"role": "user", "content": "Do I need an umbrella in Oslo?"}]
        while True:
            answer = client.responses.create(model="gpt-5.4", tools=[search_tool()], input=items)
            calls = [item for item in answer.output if item.type in ("tool_search_call", "function_call")]
            if not calls:
                break
            items += [item.model_dump(exclude_none=True) for item in answer.output]
            for item in calls:
                if searches(item):
                    items.append(output(box, item))
                else:
                    value = FUNCTIONS[box.tool(item.name).name](**json.loads(item.arguments))
                    box.record_call(item.name, ok=True)
                    items.append({"type": "function_call_output", "call_id": item.call_id, "output": value})
        print(answer.output_text)
        short = select_tools(box, "write to my aunt", nested=True)
        print("for another request:", [each["function"]["name"] for each in short])


if __name__ == "__main__":
    main()
