"""Claude: all tools are deferred, and toolscout finds them in the place of Claude's own tool search."""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))

# --- copy from here ---------------------------------------------------------------------------------------------------
import anthropic
from office import QUESTION, TOOLS

from toolscout import Scout
from toolscout.adapters import Toolbox
from toolscout.adapters.anthropic import read_call, results, searches, tools

scout = Scout("my-tools")
scout.add(TOOLS, name="office")  # or scout.add("mcp.json"), scout.add("openapi.yaml")
box, client = Toolbox(scout, k=3), anthropic.Anthropic()
functions = {function.__name__: function for function in TOOLS}

messages = [{"role": "user", "content": QUESTION}]
while True:
    answer = client.messages.create(model="claude-sonnet-4-6", max_tokens=500, tools=tools(box), messages=messages)
    if answer.stop_reason != "tool_use":
        break
    messages.append({"role": "assistant", "content": [block.model_dump() for block in answer.content]})
    made = []
    for block in answer.content:
        if searches(block):
            made.append(results(box, block))  # tool_reference blocks: Claude loads these tools and no others
        elif block.type == "tool_use":
            tool, arguments = read_call(box, block)
            value = functions[tool.name](**arguments)
            box.record_call(block.name, ok=True)  # toolscout learns from it
            made.append({"type": "tool_result", "tool_use_id": block.id, "content": value})
    messages.append({"role": "user", "content": made})
print(answer.content[0].text)
