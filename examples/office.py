"""The tools of the examples: three functions. Put your own in their place."""


def forecast(city: str) -> str:
    """The weather of the coming days in a city."""
    return f"rain in {city}"


def send_mail(to: str, text: str) -> str:
    """Send an electronic letter to somebody."""
    return f"sent to {to}"


def convert_currency(amount: float, source: str, target: str) -> str:
    """Convert an amount of money into another currency."""
    return f"{amount} {source} in {target}"


TOOLS = [forecast, send_mail, convert_currency]
QUESTION = "Do I need an umbrella in Oslo in the coming days?"
