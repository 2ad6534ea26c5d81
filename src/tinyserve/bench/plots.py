"""Plots of results. The only file that knows matplotlib (the extra `bench`)."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

from tinyserve.bench.common import cell

Point = Mapping[str, Any]
COLOURS = ("#8c6d31", "#1f77b4", "#2ca02c", "#d62728", "#9467bd", "#17becf", "#e377c2", "#7f7f7f")
MARKERS = ("s", "o", "^", "D", "v", "P", "X", "*")
BETWEEN_TOKENS = ("chunked-prefill",)  # studies that are about the gaps, not the first token


def figure(columns: int, title: str, *, rows: int = 1) -> tuple[Any, list[Any]]:
    """A figure with a row of axes, in one style."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    drawn, axes = pyplot.subplots(
        rows, columns, figsize=(4.6 * columns, 3.8 * rows), layout="constrained", squeeze=False
    )
    drawn.suptitle(title, fontsize=12)
    flat = [axis for row in axes for axis in row]
    for axis in flat:
        axis.grid(True, alpha=0.3, linewidth=0.6)
        axis.spines[["top", "right"]].set_visible(False)
    return drawn, flat


def save(drawn: Any, path: str) -> None:
    """Write the figure and let go of it."""
    from matplotlib import pyplot

    drawn.savefig(path, dpi=140)
    pyplot.close(drawn)


def style(index: int) -> dict[str, Any]:
    return {
        "color": COLOURS[index % len(COLOURS)],
        "marker": MARKERS[index % len(MARKERS)],
        "linewidth": 1.6,
        "markersize": 5,
    }


def series(points: Sequence[Point], key: str) -> dict[str, list[Point]]:
    """Points by the value of one field, in order of appearance."""
    found: dict[str, list[Point]] = {}
    for point in points:
        found.setdefault(str(point[key]), []).append(point)
    return found


def plain_numbers(axis: Any) -> None:
    """Ticks of a logarithmic axis at 1, 2 and 5, written as plain numbers."""
    from matplotlib import ticker

    axis.set_major_locator(ticker.LogLocator(base=10, subs=(1.0, 2.0, 5.0)))
    axis.set_major_formatter(ticker.FuncFormatter(lambda value, _: f"{value:g}"))
    axis.set_minor_formatter(ticker.NullFormatter())


def pareto(points: Sequence[Point], path: str, *, is_simulated: bool = False) -> None:
    """Throughput against latency, one line a policy, one point a rate."""
    title = "Scheduling policies under open-loop load" + ", simulated" * is_simulated
    drawn, (ttft, gap, load) = figure(3, title)
    for index, (policy, line) in enumerate(series(points, "policy").items()):
        speeds = [p["output_tok_s"] for p in line]
        ttft.plot(speeds, [p["ttft_s"]["p99"] for p in line], label=policy, **style(index))
        # Answers of one token have no gaps.
        gaps = [1e3 * p["inter_token_s"]["p99"] if p["inter_token_s"] else math.nan for p in line]
        gap.plot(speeds, gaps, label=policy, **style(index))
        load.plot([p["rate"] for p in line], speeds, label=policy, **style(index))
        for point in line:
            ttft.annotate(
                f"{point['rate']:g}/s",
                (point["output_tok_s"], point["ttft_s"]["p99"]),
                textcoords="offset points",
                xytext=(5, -10) if index % 2 else (-5, 6),
                ha="left" if index % 2 else "right",
                fontsize=7,
                color=COLOURS[index % len(COLOURS)],
            )
    speed = "output tokens per second"
    ttft.set(xlabel=speed, ylabel="p99 time to first token, s (log)", yscale="log", xlim=(0, None))
    ttft.margins(y=0.12)
    plain_numbers(ttft.yaxis)
    gap.set(xlabel=speed, ylabel="p99 between tokens, ms", ylim=(0, None), xlim=(0, None))
    load.set(xlabel="requests per second offered", ylabel=speed, ylim=(0, None), xlim=(0, None))
    ttft.legend(frameon=False, fontsize=8)
    save(drawn, path)


def bars(studies: Mapping[str, Mapping[str, Point]], path: str) -> None:
    """For each study, p50 and p99 latencies of its variants."""
    columns = min(3, len(studies))
    rows = -(-len(studies) // columns)
    drawn, axes = figure(columns, "What single mechanisms are worth", rows=rows)
    for axis, (name, variants) in zip(axes, studies.items(), strict=False):
        places = range(len(variants))
        if name in BETWEEN_TOKENS:
            key, label = "watched_inter_token_s", "between tokens, s"
        else:
            key, label = "watched_ttft_s", "time to first token, s"
        for offset, (share, alpha) in enumerate((("p50", 0.55), ("p99", 1.0))):
            drawn_bars = axis.bar(
                [place + 0.36 * offset for place in places],
                [v[key][share] for v in variants.values()],
                width=0.34,
                color=[COLOURS[i % len(COLOURS)] for i in places],
                alpha=alpha,
            )
            axis.bar_label(drawn_bars, fmt="{:.2g}", fontsize=7, padding=1)
        axis.grid(visible=False, axis="x")
        axis.set_xticks([place + 0.18 for place in places], list(variants), fontsize=8)
        axis.set(title=name, ylabel=f"{label} (p50 pale, p99 full)")
        axis.title.set_fontsize(10)
    for axis in axes[len(studies) :]:
        axis.set_visible(False)
    save(drawn, path)


def roofline(lines: Sequence[Point], path: str) -> None:
    """The share of the roofline over rows, one panel a model, one line a format."""
    models = series(lines, "model")
    most = 105 * max(1.0, *(line["of_roofline"] for line in lines))
    drawn, axes = figure(len(models), "Linear kernels: share of what bus and multipliers allow")
    for axis, (model, own) in zip(axes, models.items(), strict=True):
        for index, (kind, line) in enumerate(series(own, "format").items()):
            axis.plot(
                [p["rows"] for p in line],
                [100 * p["of_roofline"] for p in line],
                label=kind,
                **style(index),
            )
        axis.set_xscale("log", base=2)
        axis.set(title=model, xlabel="rows", ylabel="% of the roofline", ylim=(0, most))
        axis.set_xticks([p["rows"] for p in line], [str(p["rows"]) for p in line])
    axes[0].legend(frameon=False, fontsize=8)
    save(drawn, path)


def peers(result: Mapping[str, Any], path: str) -> None:
    """Offline speeds of every engine by case, and served throughput and latency by load."""
    panels: list[tuple[Mapping[str, Mapping[str, float]], str]] = []
    if "offline" in result:
        panels.append((result["offline"]["medians"], "tokens per second, offline"))
    if "served" in result:
        found = result["served"].items()
        speeds = {c: {n: p["output_tok_s"] for n, p in r.items()} for c, r in found}
        waits = {c: {n: p["ttft_s"]["p99"] for n, p in r.items()} for c, r in found}
        panels.append((speeds, "output tokens per second, served"))
        panels.append((waits, "p99 time to first token, s, served"))
    drawn, axes = figure(len(panels), "The same weights on the same cores, 2 threads")
    names = list(dict.fromkeys(n for cases, _ in panels for case in cases.values() for n in case))
    for axis, (cases, label) in zip(axes, panels, strict=True):
        _grouped(axis, cases, label, names)
    handles = {h.get_label(): h for axis in axes for h in axis.containers}
    drawn.legend(
        handles.values(),
        handles,
        loc="outside lower center",
        ncols=min(len(names), 4, 2 * len(panels)),
        frameon=False,
        fontsize=8,
    )
    save(drawn, path)


def growth(result: Mapping[str, Any], path: str) -> None:
    """The time of a step over streams and over context, and memory over requests."""
    drawn, (by_streams, by_context, memory) = figure(3, f"How costs grow: {result['model']}")
    lines = result.get("steps", [])
    shortest = min((line["context"] for line in lines), default=0)
    short = [line for line in lines if line["context"] == shortest]
    by_streams.plot(
        [p["streams"] for p in short], [p["ms"] for p in short], label="measured", **style(1)
    )
    if short:
        _limit(by_streams, [p["streams"] for p in short], short, "the machine's limit")
        most, first = short[-1]["streams"], short[0]["ms"]
        label = "in proportion to streams"
        by_streams.plot([1, most], [first, first * most], "--", color="#999999", label=label)
        by_streams.set(ylim=(0, 1.3 * max(p["ms"] for p in short)))
        by_streams.legend(frameon=False, fontsize=8)
    by_streams.set(xlabel=f"streams, context {shortest}", ylabel="decode step, ms", xlim=(0, None))
    contexts = sorted({line["context"] for line in lines})
    for index, (streams, line) in enumerate(series(lines, "streams").items()):
        if len(line) > 1:
            label = f"{streams} stream" + "s" * (streams != "1")
            x, y = [p["context"] for p in line], [p["ms"] for p in line]
            by_context.plot(x, y, label=label, **style(index))
            _limit(by_context, x, line, f"limit, {label}")
    by_context.set(xlabel="context, tokens", ylabel="decode step, ms", ylim=(0, None))
    if len(contexts) > 1:
        by_context.set_xscale("log", base=2)
        by_context.set_xticks(contexts, [str(c) for c in contexts])
        by_context.legend(frameon=False, fontsize=8)
    samples = result.get("memory", {}).get("samples", [])
    memory.plot([done for done, _ in samples], [mib for _, mib in samples], color=COLOURS[1])
    most = 1.3 * max((mib for _, mib in samples), default=1.0)
    memory.set(xlabel="requests answered", ylabel="server's resident memory, MiB", ylim=(0, most))
    save(drawn, path)


def _limit(axis: Any, x: Sequence[float], line: Sequence[Point], label: str) -> None:
    """The least times that the machine allows, where the result has them."""
    limits = [point.get("limit_ms") for point in line]
    if None not in limits:
        axis.plot(x, limits, ":", color=axis.lines[-1].get_color(), label=label)


def _grouped(
    axis: Any, cases: Mapping[str, Mapping[str, float]], label: str, order: Sequence[str]
) -> None:
    """Bars of every engine, side by side in each case; an engine has one colour everywhere."""
    names = [name for name in order if any(name in case for case in cases.values())]
    width = 0.8 / len(names)
    for index, name in enumerate(names):
        places = [p + index * width for p, case in enumerate(cases.values()) if name in case]
        heights = [case[name] for case in cases.values() if name in case]
        colour = COLOURS[(order.index(name) + 1) % len(COLOURS)]
        drawn_bars = axis.bar(places, heights, width * 0.92, label=name, color=colour)
        if index == 0:
            axis.bar_label(drawn_bars, labels=[cell(h) for h in heights], fontsize=7, padding=1)
    middle = 0.4 - width / 2
    axis.set_xticks([p + middle for p in range(len(cases))], list(cases), fontsize=8)
    axis.grid(visible=False, axis="x")
    axis.set_ylabel(label)
