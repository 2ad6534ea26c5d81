"""Prompts whose answers repeat themselves, repeat the prompt, or do neither: workloads for drafts.

repetitive   lists and tables that go on as they began
code         a program, to be written again with one change
chat         questions
random       tokens drawn at random
"""

from __future__ import annotations

import random
from collections.abc import Sequence

WORKLOADS = ("repetitive", "code", "chat", "random")

_QUESTIONS = (
    "Why is the sky blue on a clear day and red in the evening?",
    "What should I think about before I adopt a dog?",
    "How does a refrigerator keep things cold?",
    "Give me three ideas for a rainy weekend with two small children.",
    "What is the difference between weather and climate?",
    "Explain to a beginner how a bicycle stays upright.",
    "How do I ask my manager for a day off in a short note?",
    "Why do we have leap years?",
)
_ITEMS = ("apple", "bridge", "candle", "desert", "engine", "forest", "garden", "harbour")
_PROGRAM = '''\
class {name}:
    """Counts how often each {thing} was seen."""

    def __init__(self):
        self.counts = {{}}

    def add(self, {thing}):
        self.counts[{thing}] = self.counts.get({thing}, 0) + 1

    def remove(self, {thing}):
        if {thing} not in self.counts:
            raise KeyError({thing})
        self.counts[{thing}] -= 1
        if self.counts[{thing}] == 0:
            del self.counts[{thing}]

    def most_common(self, limit):
        ranked = sorted(self.counts.items(), key=lambda pair: -pair[1])
        return ranked[:limit]
'''


def text(workload: str, number: int) -> str:
    """Prompt `number` of a workload of texts; different numbers give different prompts."""
    item = _ITEMS[number % len(_ITEMS)]
    if workload == "repetitive":
        begin = 1 + number // len(_ITEMS)
        rows = "\n".join(f"row {begin + i}: {item}, blue, large, in stock" for i in range(12))
        return f"Continue this list up to row 60, in exactly the same format.\n{rows}"
    if workload == "code":
        program = _PROGRAM.format(name=item.title() + "Counter", thing=item)
        return f"Rename the method add to insert. Print the whole program again.\n\n{program}"
    question = _QUESTIONS[number % len(_QUESTIONS)]
    return question if number < len(_QUESTIONS) else f"{question} (Answer no. {number}.)"


def random_ids(number: int, seed: int, length: int, vocab_size: int) -> Sequence[int]:
    """Prompt `number` of the random workload."""
    dice = random.Random(f"{seed} {number}")
    return [dice.randrange(3, vocab_size) for _ in range(length)]
