"""OpenAI's Responses API: the model searches with `tool_search`, which this program answers."""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))

# --- copy from here ---------------------------------------------------------------------------------------------------
import openai
from office import QUESTION, TOOLS

from toolscout import Scout
from toolscout.adapters import Toolbox
from toolscout.adapters.openai import output, read_call, search_tool, searches

scout = Scout("my-tools")
scout.add(TOOLS, name="office")  # or scout.add("mcp.json"), scout.add("openapi.yaml")
box, client = Toolbox(scout, k=3), openai.OpenAI()
functions = {function.__name__: function for function in TOOLS}

items = [{"role": "user", "content": QUESTION}]
while True:
    answer = client.responses.create(model="gpt-5.4", tools=[search_tool()], input=items)
    calls = [item for item in answer.output if item.type in ("tool_search_call", "function_call")]
    if not calls:
        break
    items += [item.model_dump(exclude_none=True) for item in answer.output]
    for call in calls:
        if searches(call):
            items.append(output(box, call))
        else:
            tool, arguments = read_call(box, call)
            value = functions[tool.name](**arguments)
            box.record_call(call.name, ok=True)  # toolscout learns from it
            items.append({"type": "function_call_output", "call_id": call.call_id, "output": value})
print(answer.output_text)
