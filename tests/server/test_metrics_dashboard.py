"""The Grafana dashboard asks only for metrics that there are, with labels that they have."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from helpers.live_server import Live
from helpers.metrics import Scrape, scrape

DEPLOY = Path(__file__).parents[2] / "deploy"
DASHBOARD: dict[str, Any] = json.loads((DEPLOY / "grafana" / "tinyserve.json").read_text())
NAME = re.compile(r"\b(?:vllm|tinyserve):\w+|\b(?:http|process)_\w+")
BY = re.compile(r"by \(([\w, ]+)\)")


def expressions() -> Iterator[str]:
    for panel in DASHBOARD["panels"]:
        for target in panel.get("targets", []):
            yield target["expr"]


def queries() -> Iterator[str]:
    for variable in DASHBOARD["templating"]["list"]:
        if variable["type"] == "query":
            yield variable["query"]["query"]


@pytest.fixture
def metrics(served: Live) -> Scrape:
    served.complete(max_tokens=2, ignore_eos=True)
    return scrape(served.client)


def test_every_metric_of_the_dashboard_exists(metrics: Scrape) -> None:
    named = {name for text in (*expressions(), *queries()) for name in NAME.findall(text)}
    assert len(named) > 30
    known = metrics.names() | set(metrics.kinds)
    assert named <= known, named - known


def test_every_label_that_is_grouped_by_exists(metrics: Scrape) -> None:
    for expression in expressions():
        for group in BY.findall(expression):
            (name, *_) = NAME.findall(expression)
            have = {key for labels in metrics.labels(name) for key in labels}
            assert set(group.split(", ")) <= have, expression


def test_counters_are_asked_for_their_rate_and_gauges_for_their_value(metrics: Scrape) -> None:
    for expression in expressions():
        for name in NAME.findall(expression):
            if metrics.kinds.get(name) == "gauge":
                assert f"rate({name}" not in expression, expression
            else:
                assert re.search(rf"(rate|increase)\({name}\{{", expression), expression


def test_the_dashboard_shows_what_it_should() -> None:
    text = " ".join(expressions())
    for name in (
        "vllm:time_to_first_token_seconds_bucket",
        "vllm:inter_token_latency_seconds_bucket",
        "vllm:e2e_request_latency_seconds_bucket",
        "vllm:kv_cache_usage_perc",
        "vllm:prefix_cache_hits_total",
        "tinyserve:preemptions_total",
        "tinyserve:queue_depth",
        "vllm:spec_decode_num_accepted_tokens_total",
    ):
        assert name in text, name


def test_panels_have_their_own_ids_and_do_not_overlap() -> None:
    panels = DASHBOARD["panels"]
    assert len({panel["id"] for panel in panels}) == len(panels)
    cells = set()
    for panel in panels:
        at = panel["gridPos"]
        assert at["x"] + at["w"] <= 24, panel["title"]
        own = {(at["x"] + i, at["y"] + j) for i in range(at["w"]) for j in range(at["h"])}
        assert not own & cells, panel["title"]
        cells |= own


def test_the_scrape_configuration_asks_for_a_path_that_exists(served: Live) -> None:
    config = yaml.safe_load((DEPLOY / "prometheus.yml").read_text())
    (job,) = config["scrape_configs"]
    assert served.client.get(job["metrics_path"]).status_code == 200
