"""Runs the command of an MCP server with few rights: in bubblewrap, which `bubblewrap` looks for, or in a container."""
