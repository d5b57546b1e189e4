"""Run the program in this process."""

from __future__ import annotations

from click.testing import CliRunner, Result

from toolscout.cli.main import program


def run(*arguments: str, input: str | bytes | None = None) -> Result:
    """Run the program in this process and keep its output and exit code."""
    runner = CliRunner()
    import toolscout.cli.main as entry

    class Through(entry.LazyGroup):
        def main(self, args: list[str] | None = None, **extra: object) -> object:  # type: ignore[override]
            entry.main(args)
            return None

    through = Through(name="toolscout", params=program.params, callback=program.callback)
    return runner.invoke(through, list(arguments), input=input, prog_name="toolscout")
