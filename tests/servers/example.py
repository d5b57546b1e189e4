"""A server written with fastmcp, as its examples are."""

from __future__ import annotations

import sys

from fastmcp import Context, FastMCP
from pydantic import BaseModel

mcp: FastMCP = FastMCP("example")


class Point(BaseModel):
    """A point of a plane."""

    x: float
    y: float
    label: str | None = None


@mcp.tool
def add(a: int, b: int) -> int:
    """Add two numbers."""
    return a + b


@mcp.tool
def mirror(point: Point) -> Point:
    """Mirror a point at the origin."""
    return Point(x=-point.x, y=-point.y, label=point.label)


@mcp.tool
def fail() -> str:
    """Fail."""
    raise ValueError("it failed")


@mcp.tool
async def count(to: int, context: Context) -> str:
    """Count and tell how far it is."""
    for step in range(to):
        await context.report_progress(step + 1, to)
    return f"counted to {to}"


@mcp.resource("config://version")
def read_version() -> str:
    """Give the version."""
    return "1.2.3"


@mcp.resource("user://{name}/profile")
def read_profile(name: str) -> dict[str, str]:
    """Give a profile."""
    return {"name": name}


@mcp.prompt
def summarise(text: str) -> str:
    """Ask for a summary."""
    return f"Summarise: {text}"


if __name__ == "__main__":
    mcp.run(show_banner=False)
    sys.exit(0)
