"""Runs programs of agents and MCP servers with few rights.

`runner` runs a short program without files and network; `child` is what runs in its process. `servers` runs the command
of an MCP server in bubblewrap or a container. `bubblewrap` finds out whether that works on this system.
"""
