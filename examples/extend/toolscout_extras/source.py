"""A source: tools in a CSV file with the columns name, description and arguments."""

import csv
import functools
from pathlib import Path

from toolscout.errors import BadEntry, SourceError
from toolscout.settings import Settings
from toolscout.sources import RawTool, Reading, build_tool, collect, source_name
from toolscout.types import Tool


def print_page(page: str) -> str:
    """What the gateway runs for the tool of this name, if it was started with --allow-python."""
    return f"page {page} is printed"


FUNCTIONS = {"print_page": {"module": __name__, "qualname": "print_page"}}


def make_tool(source: str, row: dict[str, str]) -> Tool:
    """Build the tool of one row; a row without a name is a bad entry."""
    if not row.get("name"):
        raise BadEntry("The row has no name. Fill in its column `name`.")
    properties = {argument: {"type": "string"} for argument in (row.get("arguments") or "").split()}
    raw = RawTool(
        id=row["name"],
        description=row.get("description"),
        parameters={"type": "object", "properties": properties},
        path=[source],
        meta=FUNCTIONS.get(row["name"], {}),
    )
    return build_tool(source, raw)


def read(locator: str, *, name: str | None, settings: Settings) -> list[Reading]:
    """Read the file. Bad rows become problems; only an unreadable file is an error."""
    path = Path(locator).expanduser()
    try:
        with path.open(newline="", encoding="utf-8") as file:
            rows = list(csv.DictReader(file))
    except (OSError, UnicodeDecodeError, csv.Error) as error:
        raise SourceError(f"{path}: The file cannot be read as CSV: {error}") from None
    source = name or source_name(path.stem)
    entries = [(f"row {number}", functools.partial(make_tool, source, row)) for number, row in enumerate(rows, 2)]
    return [collect(source, "csv", entries)]


if __name__ == "__main__":
    import tempfile

    from toolscout.testing import check_source

    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder, "office.csv")
        file.write_text("name,description,arguments\nprint_page,Print a page on paper.,page\n,No name.,\n")
        [reading] = check_source(lambda: read(str(file), name=None, settings=Settings()))
    print([tool.id for tool in reading.tools], reading.problems)
