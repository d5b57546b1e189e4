"""Writes the tables and figures of results into README.md and docs/, from benchmarks/results.

Every page of README.md and docs/ that holds a mark is kept up to date; no list names the pages. The pages of the
papers below docs/results/papers are written whole.

A figure in a sentence is followed by `<!--= WHAT -->`, and is written as WHAT says:

    SET LABEL MEASURE          of a result, in percent, one decimal
    mean GROUP LABEL MEASURE   the mean over a group of sets: all, trained, untrained, clean or targets (of transfer)
    FILE.json KEY/KEY FORMAT   a value of a file in benchmarks/results, in Python's format (`,d`, `.1f`, `.1%`)

In README.md every decimal fraction outside of code must stand in a table that is written here, or before such a mark.
A page holds, around each table, `<!-- table KIND LABEL… -->` and `<!-- end of table -->`. No line is longer than 120
characters: a table that is too wide becomes several, each with the first column, and a long mark is wrapped.

    headline WHICH     README's: zero-shot or toollens
    means LABEL…       NDCG@5 / COMP@5 of each label on each of the fourteen sets, and the means
    trained LABEL…     the same on the eight sets with training queries; `-` where there is no result
    sets LABEL         more figures of one label on each set that has a result, beside those of hybrid-minilm
    labels LABEL…      more figures of each label on ToolLens
    intervals SET LABEL…
                       three figures of each label on a set, with 95 % intervals
    transfer SET LABEL…
                       NDCG@1/3/5/10 of what was fitted on a set, there and on others
    parents SET LABEL…
                       figures of each label on a set, by whether training saw the parents of the gold tools
    subsets SET MEASURE LABEL…
                       one measure of each label on the six subsets of ToolBench, and ToolRerank's means of them
    papers all         how many items of each paper are here
    small-model WHAT   runs with a language model of 135M weights (benchmarks/language_model.py): cost or figures
    query-words all    length and words of queries (benchmarks/query_words.py)
    stage-costs all    processor time and memory of a search (benchmarks/stage_costs.py)
    paper-seeds MEASURE
                       gain of each paper's idea on six sets, over three seeds (benchmarks/paper_seeds.py)
    feedback-rounds all
                       each round of feedback with the small model
    case WHAT          texts as examples: queries SET…, polish, feedback or answers
    dev SET LABEL…     figures on dev of each label, pooled over the folds
    golds SET LABEL…   the same of each label, by how many gold tools a query has
    sweeps SET LABEL…  what each sweep of a recipe found on dev
    swept LABEL SET…   what one sweep found on the dev of several sets, and the mean of both figures over all of them
    values NAME        single figures of result files (VALUES in table_kinds.py)
    versus SET A B…    how far A is above each B on a set (benchmarks/versus.py), and by parents; 95 % intervals, p;
                       p is corrected by Holm for the measures among all queries, not among parts of them. A table
                       for each cut-off
    learning NAME      quality after each part of replayed traffic (benchmarks/learning.py)
    noise NAME         the promotion under wrong labels that changed each measure on test for the worst
    hidden LABEL…      whether tools are found that training never saw (benchmarks/hidden_tools.py), three draws each
    unseen LABEL…      the means of these draws, and their differences
    read WHAT          tools: how many of each set the bundled encoder has read; gold: how many test queries of each set
                       need a set of tools that train needs too
    peers WHAT         other tool retrievers beside scout (benchmarks/peers.py): quality, cost or sets
    abstention WHAT    requests that are turned away: left-out (benchmarks/abstention.py), need, kinds, fit or shipped
                       (benchmarks/need.py)
    exit WHAT          what is said where no tool fits (benchmarks/exit.py): mean, unseen or sets
    rules WHAT         what each rule of ranking brings (benchmarks/rules.py): dev, clean, costs or everyday
    scale WHAT         large catalogues (benchmarks/scale.py): add, first, search, recall, or what follows on paper
    servers WHAT       published MCP servers and clients (benchmarks/matrix.py, client_sessions.py): all, sums, silent,
                       tried or clients
    speed WHAT         times of everyday, encoders, pairs, service, gateway or gateway-searches

With `--check` nothing is written, and the exit code is 1 if a page is out of date. With `--provenance` it counts
instead, for each label, the results whose commit is an ancestor of HEAD, and those that were made by changed code or by
a commit that nobody can reach, into benchmarks/results/provenance.md (with `--check` it only says how many).
"""

from __future__ import annotations

import json
import re
import subprocess
import sys
import textwrap
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path

from table_kinds import KINDS, write_figure
from table_layout import MAX_LINE_CHARS, RESULTS, ROOT, lay_out
from table_need import NEED_KINDS
from table_papers import PAPER_KINDS, write_pages
from table_peers import PEER_KINDS
from table_rules import RULE_KINDS
from table_scale import SCALE_KINDS
from table_servers import SERVER_KINDS

from toolscout.checks.results import SWEEPS_FOLDER, read_results

TABLE = re.compile(r"(<!-- table (\S+)\s+(.+?)\s-->)\n(.*?)<!-- end of table -->", re.DOTALL)
FIGURE = re.compile(r"([\d,]+(?:\.\d+)?)(?=\**(?: %)?\**<!--= (.+?) -->)", re.DOTALL)
BARE = re.compile(r"(?<![\w.-])(?<!Python )(?<!Swagger )\d+\.\d+(?!\**(?: %)?\**<!--= )")
CODE = re.compile(r"^```.*?^```$|`[^`\n]+`", re.DOTALL | re.MULTILINE)


def write_block(mark: str, kind: str, words: Sequence[str]) -> str:
    """A table between its marks. A mark that is too long is wrapped."""
    if max(map(len, mark.splitlines())) > MAX_LINE_CHARS:
        mark = textwrap.fill(" ".join(mark.split()), MAX_LINE_CHARS, break_long_words=False, break_on_hyphens=False)
    kinds = {**KINDS, **NEED_KINDS, **PAPER_KINDS, **PEER_KINDS, **RULE_KINDS, **SCALE_KINDS, **SERVER_KINDS}
    return "\n".join([mark, *kinds[kind](words), "<!-- end of table -->"])


def refresh(text: str) -> str:
    """A page with its tables and figures as the results have them."""
    text = TABLE.sub(lambda match: write_block(match[1], match[2], match[3].split()), text)
    return FIGURE.sub(lambda match: write_figure(match[2]), text)


def find_pages() -> Iterator[Path]:
    """README.md and every page of docs/ that holds a mark."""
    for page in [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]:
        if "<!-- table " in (text := page.read_text()) or "<!--= " in text:
            yield page


def find_unmarked(text: str) -> list[str]:
    """Decimal fractions of a page that stand neither in code, nor in a table from here, nor before a mark."""
    return BARE.findall(CODE.sub("", TABLE.sub("", text)))


def count_provenance() -> tuple[list[str], int, int]:
    """A table of each label's results by where they come from; how many are of a clean commit, of how many."""
    log = subprocess.run(["git", "rev-list", "HEAD"], cwd=ROOT, capture_output=True, text=True, check=True)
    reachable = sorted(log.stdout.split())
    kinds = ("clean", "dirty", "unreachable", "none")
    counts: dict[str, Counter[str]] = {}
    for folder in (RESULTS, RESULTS / SWEEPS_FOLDER):
        for result in read_results(folder)[0]:
            raw = json.loads((folder / result.dataset / f"{result.label}.json").read_text())
            commit = (result.commit or "").removesuffix("-dirty")
            if not result.commit:
                kind = "none"
            elif raw.get("dirty") or result.commit.endswith("-dirty"):
                kind = "dirty"
            else:
                kind = "clean" if any(known.startswith(commit) for known in reachable) else "unreachable"
            counts.setdefault(result.label, Counter())[kind] += 1
    total = sum(counts.values(), Counter())
    rows = [[label, *(str(counts[label][kind] or "") for kind in kinds)] for label in sorted(counts)]
    rows.append(["**all**", *(str(total[kind]) for kind in kinds)])
    lines = [
        "# Where the results come from",
        "",
        "`python scripts/tables.py --provenance` writes this page. [Provenance](../../docs/results/provenance.md) says",
        "what the columns mean.",
        "",
        *lay_out(("label", *kinds), rows),
    ]
    return lines, total["clean"], total.total()


def main() -> None:
    """Bring the pages up to date, or check that they are."""
    check = "--check" in sys.argv
    if "--provenance" in sys.argv:
        lines, clean, total = count_provenance()
        if not check:
            (RESULTS / "provenance.md").write_text("\n".join(lines) + "\n")
        sys.stdout.write(f"{clean} of {total} results are of a clean commit of this history\n")
        return
    late = []
    for page, fresh in [*((page, refresh(page.read_text())) for page in find_pages()), *write_pages(ROOT).items()]:
        text = page.read_text()
        if fresh != text:
            late.append(str(page.relative_to(ROOT)))
            if not check:
                page.write_text(fresh)
    if late and check:
        sys.exit(f"Figures in {', '.join(late)} are not those of benchmarks/results. Run scripts/tables.py.")
    if unmarked := find_unmarked((ROOT / "README.md").read_text()):
        sys.exit(
            f"Figures in README.md name no result: {', '.join(unmarked)}. Put a mark (scripts/tables.py) after each."
        )


if __name__ == "__main__":
    main()
