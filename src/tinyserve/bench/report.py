"""Writes what was measured into the documents, so that no number in a table is typed by hand.

    python -m tinyserve.bench.report            rewrite the tables and plots from the results
    python -m tinyserve.bench.report --check    exit with 1 if a document disagrees with the results

In `benchmarks/REPORT.md` and `README.md`, whatever stands between `<!-- result: NAME -->` and
`<!-- end -->` belongs to this program; the prose around it does not. NAME is a block of
`report_blocks`, made from files of `benchmarks/results`. A result that is not there yet is said to
be not measured. Plots are drawn from the same files (`--plots`; needs matplotlib).
"""

from __future__ import annotations

import argparse
import re
import sys
from pathlib import Path

from tinyserve.bench.report_blocks import BLOCKS, PLOTS
from tinyserve.bench.results import Results

DOCUMENTS = ("benchmarks/REPORT.md", "README.md")
MARKED = re.compile(r"(<!-- result: ([\w.-]+) -->\n)(.*?)(<!-- end -->)", re.DOTALL)


def main(argv: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(
        prog="python -m tinyserve.bench.report",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--root", default=".", help="a checkout (default: this folder)")
    parser.add_argument("--check", action="store_true", help="change nothing")
    parser.add_argument("--plots", action="store_true", help="draw the plots anew, too")
    args = parser.parse_args(argv)
    root = Path(args.root)
    results = Results(root / "benchmarks")
    if args.plots and not args.check:
        draw(results)
    stale = [name for name in DOCUMENTS if not is_current(root / name, results)]
    if args.check and stale:
        sys.exit(f"not as the results say: {', '.join(stale)}; run this without --check")
    for name in stale:
        path = root / name
        path.write_text(filled(path.read_text(encoding="utf-8"), results), encoding="utf-8")
        print(f"{name} was rewritten")


def is_current(path: Path, results: Results) -> bool:
    """Whether every block of a document is what the results give."""
    text = path.read_text(encoding="utf-8")
    return text == filled(text, results)


def filled(text: str, results: Results) -> str:
    """A document with its blocks written anew. Raises KeyError for a block that nobody makes."""

    def block(found: re.Match[str]) -> str:
        opening, name, _, closing = found.groups()
        return f"{opening}\n{BLOCKS[name](results)}\n\n{closing}"

    return MARKED.sub(block, text)


def draw(results: Results) -> None:
    """Each plot whose result is there, beside the report."""
    for name, plot in PLOTS.items():
        result = results.read(name)
        if result is not None:
            plot(result, str(results.folder / f"{name}.png"))


if __name__ == "__main__":
    main()
