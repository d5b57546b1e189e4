"""A source: tools in a CSV file with the columns name, description and arguments. One function runs them all."""

import csv
import functools
from pathlib import Path

from toolscout.errors import BadEntry, SourceError
from toolscout.settings import Settings
from toolscout.sources import RawTool, Reading, build_tool, collect, source_name
from toolscout.types import Tool


def run_row(tool: str, **arguments: str) -> str:
    """What the gateway runs for every tool, if it was started with --allow-python. `tool` is fixed in `make_tool`."""
    return f"{tool} runs with {arguments}"


def make_tool(source: str, row: dict[str, str]) -> Tool:
    """Build the tool of one row; a row without a name is a bad entry."""
    if not row["name"]:
        raise BadEntry("The row has no name. Fill in its column `name`.")
    properties = {argument: {"type": "string"} for argument in (row.get("arguments") or "").split()}
    raw = RawTool(
        id=row["name"],
        description=row.get("description"),
        parameters={"type": "object", "properties": properties, "additionalProperties": False},
        path=[source],
        meta={"module": __name__, "qualname": "run_row", "arguments": {"tool": row["name"]}},
    )
    return build_tool(source, raw)


def read(locator: str, *, name: str | None, settings: Settings) -> list[Reading]:
    """Read the file. Bad rows become problems; only a file that nobody can read is an error."""
    path = Path(locator).expanduser()
    source = name or source_name(path.stem)
    try:
        with path.open(newline="", encoding="utf-8-sig") as file:  # Excel begins a file with a mark of its encoding
            rows = csv.DictReader(file)
            if "name" not in (rows.fieldnames or ()):
                raise SourceError("The file has no column `name`. Write name,description,arguments in its first line.")
            entries = [(f"line {rows.line_num}", functools.partial(make_tool, source, row)) for row in rows]
    except OSError as error:
        raise SourceError(f"The file cannot be opened: {error.strerror}") from None
    except (UnicodeDecodeError, csv.Error) as error:
        raise SourceError(f"The file cannot be read as CSV: {error}. Save it as CSV in UTF-8.") from None
    return [collect(source, "csv", entries)]


if __name__ == "__main__":
    import tempfile

    from toolscout.testing import check_source

    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder, "office.csv")
        file.write_text("name,description,arguments\nprint_page,Print a page on paper.,page\n,No name.,\n")
        [reading] = check_source(lambda: read(str(file), name=None, settings=Settings()))
    print([tool.id for tool in reading.tools], reading.problems)
