"""Reading `/metrics` as Prometheus does."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import httpx
from prometheus_client.parser import text_string_to_metric_families


@dataclass
class Scrape:
    """The samples of one scrape."""

    text: str
    samples: dict[tuple[str, frozenset[tuple[str, str]]], float]
    kinds: dict[str, str]  # family name as exposed: gauge | counter | histogram

    def __call__(self, name: str, **labels: str) -> float:
        """The sum of the samples of this name whose labels include these."""
        wanted = labels.items()
        found = [v for (n, has), v in self.samples.items() if n == name and has >= wanted]
        assert found, f"no sample {name} {labels}"
        return sum(found)

    def labels(self, name: str) -> Iterator[dict[str, str]]:
        return (dict(has) for n, has in self.samples if n == name)

    def names(self) -> set[str]:
        """Every sample's name."""
        return {name for name, _ in self.samples}


def scrape(client: httpx.Client, path: str = "/metrics") -> Scrape:
    response = client.get(path)
    assert response.status_code == 200, response.text
    assert response.headers["content-type"] == "text/plain; version=0.0.4; charset=utf-8"
    return parse(response.text)


def parse(text: str) -> Scrape:
    samples = {}
    for family in text_string_to_metric_families(text):
        for sample in family.samples:
            key = sample.name, frozenset(sample.labels.items())
            assert key not in samples, f"{key} comes twice"
            samples[key] = sample.value
    lines = [line.split() for line in text.splitlines() if line.startswith("# TYPE")]
    kinds = {name: kind for _, _, name, kind in lines}
    assert len(kinds) == len(lines), "a family comes twice"
    return Scrape(text, samples, kinds)
