"""A model that follows a script, served over HTTP as the APIs of OpenAI and Anthropic are. The examples need no key.

    python examples/scripted_model.py        # prints the variables to set, and serves until it is stopped

Whatever the API, the script is the same: if there is a tool that searches, search; then call the forecast for Oslo, by
its own name or through `call_tool`; then say what the tool said.
"""

import json
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

SEARCH, CALL = "search_tools", "call_tool"
REQUEST = "will it rain in the coming days?"


def choose_call(names: list[str], results: list[str]) -> tuple[str, dict] | None:
    """Choose the next tool and its arguments. None: the task is done."""
    forecast = next((name for name in names if name.endswith("forecast")), None)
    if any("rain in Oslo" in text for text in results):
        return None
    if forecast is not None:
        return forecast, {"city": "Oslo"}
    if CALL in names and results:
        return CALL, {"id": "office/forecast", "arguments": {"city": "Oslo"}}
    return SEARCH, {"queries": [REQUEST]} if CALL not in names else {"query": REQUEST}


def say(results: list[str]) -> str:
    return f"The tool said: {next(text for text in results if 'rain in Oslo' in text)}"


def answer_messages(body: dict) -> dict:
    """Anthropic's Messages. A deferred tool may be called once a result refers to it."""
    blocks = [block for message in body["messages"][1:] for block in message["content"] if isinstance(block, dict)]
    results = [block for block in blocks if block["type"] == "tool_result"]
    parts = [part for block in results if isinstance(block["content"], list) for part in block["content"]]
    loaded = {part["tool_name"] for part in parts if part["type"] == "tool_reference"}
    names = [tool["name"] for tool in body["tools"] if not tool.get("defer_loading") or tool["name"] in loaded]
    texts = [block["content"] for block in results if isinstance(block["content"], str)]
    call = choose_call([name for name in names if name != CALL], texts)
    if call is None:
        content = [{"type": "text", "text": say(texts)}]
    else:
        argument = {"query": REQUEST} if call[0] == SEARCH else call[1]
        content = [{"type": "tool_use", "id": f"t{len(blocks)}", "name": call[0], "input": argument}]
    head = {"id": "m", "type": "message", "role": "assistant", "model": body["model"], "stop_sequence": None}
    usage = {"input_tokens": 1, "output_tokens": 1}
    return {**head, "content": content, "stop_reason": "end_turn" if call is None else "tool_use", "usage": usage}


def answer_responses(body: dict) -> dict:
    """OpenAI's Responses. A search that the client answers may load tools."""
    items = [item for item in body["input"] if isinstance(item, dict)]
    loaded = [tool for item in items if item.get("type") == "tool_search_output" for tool in item["tools"]]
    names = [tool["name"] for tool in [*body["tools"], *loaded] if "name" in tool]
    texts = [json.dumps(item["output"]) for item in items if item.get("type") == "function_call_output"]
    call = choose_call(names, texts)
    identity = f"c{len(items)}"
    if call is None:
        text = {"type": "output_text", "text": say(texts), "annotations": []}
        item = {"type": "message", "id": "m1", "role": "assistant", "status": "completed", "content": [text]}
    elif call[0] == SEARCH and SEARCH not in names:
        item = {"type": "tool_search_call", "id": identity, "call_id": identity, "execution": "client"}
        item |= {"status": "completed", "arguments": {"query": REQUEST}}
    else:
        item = {"type": "function_call", "id": identity, "call_id": identity, "name": call[0]}
        item |= {"arguments": json.dumps(call[1]), "status": "completed"}
    head = {"id": "r", "object": "response", "created_at": 0, "model": body["model"], "status": "completed"}
    details = {"input_tokens_details": {"cached_tokens": 0}, "output_tokens_details": {"reasoning_tokens": 0}}
    usage = {"input_tokens": 1, "output_tokens": 1, "total_tokens": 2, **details}
    return {**head, "output": [item], "parallel_tool_calls": True, "tool_choice": "auto", "tools": [], "usage": usage}


def answer_completions(body: dict) -> dict:
    """OpenAI's chat completions, which LangChain, Pydantic AI and many servers speak."""
    names = [tool["function"]["name"] for tool in body.get("tools", ())]
    texts = [str(message["content"]) for message in body["messages"] if message["role"] == "tool"]
    call = choose_call(names, texts)
    message = {"role": "assistant", "content": say(texts) if call is None else None}
    if call is not None:
        function = {"name": call[0], "arguments": json.dumps(call[1])}
        message["tool_calls"] = [{"id": f"c{len(body['messages'])}", "type": "function", "function": function}]
    choice = {"index": 0, "message": message, "finish_reason": "stop" if call is None else "tool_calls"}
    usage = {"prompt_tokens": 1, "completion_tokens": 1, "total_tokens": 2}
    head = {"id": "x", "object": "chat.completion", "created": 0, "model": body["model"]}
    return {**head, "choices": [choice], "usage": usage}


ANSWERS = {
    "/v1/messages": answer_messages,
    "/v1/responses": answer_responses,
    "/v1/chat/completions": answer_completions,
}


class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def do_POST(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        answer = ANSWERS.get(self.path.partition("?")[0])
        content = json.dumps(answer(body) if answer else {"error": {"message": "no such address"}}).encode()
        self.server.asked.append(
            [tool.get("name") or tool.get("function", tool).get("name") for tool in body.get("tools", ())]
        )
        self.send_response(200 if answer else 404)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        self.wfile.write(content)

    def log_message(self, *about: object) -> None:
        pass


def make_server(port: int = 0) -> ThreadingHTTPServer:
    """Make the server. `server.asked` lists the names of the tools of each request."""
    server = ThreadingHTTPServer(("127.0.0.1", port), Handler)
    server.asked = []
    return server


if __name__ == "__main__":
    serving = make_server(8099)
    address = f"http://127.0.0.1:{serving.server_port}"
    print(f"export OPENAI_BASE_URL={address}/v1 OPENAI_API_KEY=none")
    print(f"export ANTHROPIC_BASE_URL={address} ANTHROPIC_API_KEY=none", flush=True)
    serving.serve_forever()
