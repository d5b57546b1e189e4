"""The command `settings`: what can be set, what holds, and where it comes from."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

import click

from toolscout.cli.output import choose_home, echo, escape_line, json_option, print_json, print_table
from toolscout.errors import NotFound, name_nearest
from toolscout.settings import Settings, load_settings

__all__ = ["SETTING_MEANINGS"]

SETTING_MEANINGS: Final[Mapping[str, str]] = {
    "home": "folder of catalogue, journal and models, or a database",
    "tenant": "whose catalogue of the home it is",
    "recipe": "the recipe of searches that name none",
    "recipe_options": "options of that recipe, as name=value",
    "model": "the fitted model of searches that name none",
    "encoder": "the encoder: static, compact, minilm, a folder, a name or an address",
    "index": "the index over vectors",
    "k": "tools in an answer",
    "prerequisites": "most prerequisites between two matches; 0: none",
    "dependencies": "prerequisites of tools, as tool=prerequisite, two ids",
    "coverage_aim": "probability of a complete answer that ends it, with -k auto",
    "mcp_timeout": "seconds to read the list of an MCP server",
    "http_timeout": "seconds to fetch a document",
    "private_hosts": "private addresses that documents may lead to",
    "max_tools": "tools of a server, operations of a document",
    "journal": "whether searches and calls are written down",
    "journal_queries": "how queries are written: full, hash, none",
    "journal_keep_days": "days after which events are removed; 0: never",
    "redact_personal": "whether e-mail addresses and telephone numbers are masked too",
    "caller": "name of the home's owner in the journal",
    "trust": "pin: changed definitions wait for approval; off: they are served",
    "trust_scan": "whether suspicious and copied tools are demoted",
    "fold_similar": "whether the same tool of several sources is one hit",
    "preferred_sources": "sources that stand for the same tools of others",
    "call_timeout": "seconds of a call through the gateway",
    "gateway_budget": "tokens of an answer of the gateway",
    "gateway_result_budget": "tokens of a call's result through the gateway",
    "gateway_idle": "seconds after which an unused server is stopped; 0: never",
    "gateway_servers": "servers that run as processes at the same time",
    "run_code": "whether agents may run programs that call tools",
    "run_code_writes": "whether such programs may call tools that change something",
    "run_code_seconds": "seconds of a program, with its calls",
    "gateway_rate": "requests a second of one caller of the gateway; 0: no limit",
    "gateway_query_chars": "characters of a query to the gateway",
    "gateway_argument_bytes": "bytes of the arguments of a call",
    "registry": "address of the MCP registry for registry:NAME",
    "public_url": "https address at which browsers reach the gateway, for sign-ins",
    "shared_sessions": "servers with OAuth that all callers use as whoever added them",
    "pins": "ids of tools that the gateway shows beside its own",
    "llm": "address and model of a chat-completions endpoint, https://host/v1#model",
    "llm_timeout": "seconds of a request to the language model",
    "llm_concurrency": "requests to the language model at the same time",
    "llm_rpm": "requests a minute to the language model; 0: no limit",
    "llm_budget": "limits of a command or process: calls=…,tokens=…,dollars=…",
    "llm_reply_tokens": "tokens of a reply of the language model",
    "llm_price_in": "dollars for a million tokens sent",
    "llm_price_out": "dollars for a million tokens received",
    "learn_trust": "callers whose usage may promote a model alone",
    "false_rejects": "share of answerable requests that may be turned away",
    "telemetry": "address of an OTLP collector for traces and metrics",
    "telemetry_share": "share of the traces that begin here and are sent",
    "log_format": "text or json: the form of log lines of serve and gateway",
    "drain_seconds": "seconds between a signal to stop and the end of taking requests",
    "ray": "address of a Ray cluster for big jobs, or local",
}


@click.command("settings")
@click.argument("names", nargs=-1, metavar="[NAME]...")
@click.option("--home", metavar="DIR", help="Folder of the catalogue and the journal.")
@json_option
@click.pass_context
def settings_command(ctx: click.Context, names: tuple[str, ...], home: str | None, as_json: bool) -> None:
    """List all settings, or those NAMEd: value, where it comes from, and meaning.

    Set one in the environment, as TOOLSCOUT_ and the name in capitals, or in toolscout.toml in the working directory.
    """
    settings = load_settings(**choose_home(ctx, home))
    rows = _describe_settings(settings)
    setting_names = [row["name"] for row in rows]
    for name in names:
        if name not in setting_names:
            known, _, value = name.partition("=")
            advice = name_nearest(name, setting_names, "See  toolscout settings")
            if known in setting_names:
                advice = f"This command only lists. To set it, set TOOLSCOUT_{known.upper()}={value}"
            raise NotFound(f"expected the name of a setting, found {name!r}. {advice}")
    chosen = [row for row in rows if not names or row["name"] in names]
    if as_json:
        print_json(chosen)
        return
    print_table(
        [("setting", "left"), ("value", "left"), ("from", "left"), ("meaning", "wrap")],
        [(row["name"], row["value"], row["origin"], row["meaning"]) for row in chosen],
    )
    if settings.ignored:
        echo(escape_line(f"ignored, because the folder is not trusted: {', '.join(settings.ignored)}"))


def _describe_settings(settings: Settings) -> list[dict[str, Any]]:
    """Describe every setting in texts."""
    return [
        {
            "name": name,
            "value": _format_value(value),
            "origin": f"TOOLSCOUT_{name.upper()}" if origin == "environment" else origin,
            "meaning": SETTING_MEANINGS.get(name, ""),
        }
        for name, value, origin in settings.items()
    ]


def _format_value(value: Any) -> str:
    """Format a value as it is written in the environment; `none` if it is empty."""
    if value in (None, "", ()):
        return "none"
    if isinstance(value, bool):
        return str(value).lower()
    return ",".join(value) if isinstance(value, tuple) else str(value)
