"""`toolscout serve` in a process of its own."""

from __future__ import annotations

import http.client
import json
import re
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any


class Program:
    """A running service; made ready before it is given."""

    def __init__(self, home: Path | str, *options: str) -> None:
        started = time.perf_counter()
        self.home = home
        line = [sys.executable, "-m", "toolscout", "--home", str(home), "serve", "--port", "0", *options]
        self.process = subprocess.Popen(line, stderr=subprocess.PIPE, text=True)
        assert self.process.stderr is not None
        self.said = ""
        for text in self.process.stderr:
            self.said += text
            if found := re.search(r"http://[\d.]+:(\d+)/", text):
                self.port = int(found[1])
                break
        else:
            raise AssertionError(f"the service did not start: {self.said}")
        while self.ask("GET", "/ready")[0] != 200:
            time.sleep(0.01)
        self.seconds = time.perf_counter() - started

    def connect(self) -> http.client.HTTPConnection:
        return http.client.HTTPConnection("127.0.0.1", self.port, timeout=30)

    def ask(self, method: str, path: str, body: Any = None, **headers: str) -> tuple[int, Any]:
        connection = self.connect()
        try:
            content = None if body is None else json.dumps(body)
            connection.request(method, path, content, {"content-type": "application/json", **headers})
            answer = connection.getresponse()
            return answer.status, json.loads(answer.read())
        finally:
            connection.close()

    def end(self, number: signal.Signals) -> int:
        self.process.send_signal(number)
        self.said += self.process.communicate(timeout=60)[1] or ""
        return self.process.returncode
