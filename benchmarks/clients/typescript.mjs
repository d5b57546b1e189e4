// The session of client_sessions.py with the MCP SDK for TypeScript.
import { Client } from "@modelcontextprotocol/sdk/client/index.js";
import { StdioClientTransport } from "@modelcontextprotocol/sdk/client/stdio.js";
import { CallToolResultSchema, ElicitRequestSchema } from "@modelcontextprotocol/sdk/types.js";

const [command, ...args] = process.argv.slice(2);
const client = new Client({ name: "session", version: "1" }, { capabilities: { elicitation: { form: {} } } });
client.setRequestHandler(ElicitRequestSchema, async () => ({ action: "accept", content: { name: "Ann" } }));
const transport = new StdioClientTransport({ command, args, env: { ...process.env } });
await client.connect(transport, { timeout: 300_000 });
const call = (name, values, options) => client.callTool({ name, arguments: values }, CallToolResultSchema, { timeout: 300_000, ...options });
const steps = { protocol: transport._protocolVersion ?? client._negotiatedProtocolVersion ?? "" };
steps.search = await call("search_tools", { queries: ["structured number"] });
steps.call = await call("call_tool", { id: "it/structured", arguments: { number: 7 } });
steps.question = await call("call_tool", { id: "it/ask", arguments: {} });
steps.cut = await call("call_tool", { id: "it/big", arguments: {} });
const handle = steps.cut._meta?.["toolscout/result"]?.handle ?? "";
steps.rest = await call("read_result", { handle, path: "content.0.text", offset: 19000 });
steps.resource = await client.readResource({ uri: "memo://notes/1" }, { timeout: 300_000 });
const stop = new AbortController();
setTimeout(() => stop.abort(), 2000);
await call("call_tool", { id: "it/hang", arguments: {} }, { signal: stop.signal }).catch(() => {});
await new Promise((resolve) => setTimeout(resolve, 1000));
steps.cancelled = await call("call_tool", { id: "it/cancelled", arguments: {} });
console.log(JSON.stringify(steps));
await client.close();
