"""Plain HTTP: search with `toolscout serve`, and report what was called. It needs Python alone."""

import json
import os
import urllib.request

SERVICE = os.environ.get("TOOLSCOUT_URL", "http://127.0.0.1:8766")


def post(path: str, **body: object) -> dict:
    request = urllib.request.Request(SERVICE + path, json.dumps(body).encode(), {"content-type": "application/json"})
    with urllib.request.urlopen(request, timeout=30) as response:
        return json.load(response)


answer = post("/v1/search", query="make a temporary directory", k=3)
for hit in answer["hits"]:
    print(f"{hit['score']:.2f}  {hit['id']}")
post("/v1/calls", tool=answer["hits"][0]["id"], search_id=answer["search_id"], ok=True)  # toolscout learns from it
