"""Calls of tools: who may call what, arguments, and the call itself by the kind of the tool."""
