"""A bookshop as an MCP server: the example of the documentation. Its orders live in memory; nothing is bought."""

from typing import Any

from mcp.server import MCPServer
from mcp.types import ToolAnnotations

READS = ToolAnnotations(read_only_hint=True)
CHANGES = ToolAnnotations(read_only_hint=False, destructive_hint=True)
ORDERS = [
    {"order_id": f"A-{number}", "title": title, "state": state, "euros": euros}
    for number, (title, state, euros) in enumerate(
        [("Dune", "shipped", 12.5), ("Emma", "packed", 9.0), ("Ulysses", "refunded", 21.0)] * 400, 1001
    )
]
STOCK = {"Dune": 3, "Emma": 0, "Ulysses": 7}

server = MCPServer("shop")


@server.tool(annotations=READS)
def search_books(text: str) -> dict[str, Any]:
    """Search books by title, author or subject."""
    return {"titles": [title for title in STOCK if text.lower() in title.lower()]}


@server.tool(annotations=READS)
def get_stock(title: str) -> dict[str, Any]:
    """How many copies of a book are in stock."""
    return {"title": title, "in_stock": STOCK.get(title, 0)}


@server.tool(annotations=READS)
def list_orders(limit: int = 2) -> dict[str, Any]:
    """List the orders of the customer, the newest first, each with its id and state."""
    return {"orders": ORDERS[::-1][:limit]}


@server.tool(annotations=READS)
def track_order(order_id: str) -> dict[str, Any]:
    """Show where an order is: packed, shipped or delivered."""
    return next((order for order in ORDERS if order["order_id"] == order_id), {"error": "no such order"})


@server.tool(annotations=CHANGES)
def cancel_order(order_id: str) -> str:
    """Cancel an order that has not been shipped."""
    return f"{order_id} is cancelled"


@server.tool(annotations=CHANGES, meta={"depends_on": ["list_orders"]})
def refund_order(order_id: str, reason: str) -> str:
    """Refund an order and send the money back."""
    return f"{order_id} is refunded: {reason}"


@server.tool(annotations=CHANGES)
def send_invoice(order_id: str, email: str) -> str:
    """Send the invoice of an order by email."""
    return f"The invoice of {order_id} is on its way to {email}"


if __name__ == "__main__":
    server.run()
