"""Workloads for drafts: prompts whose answers repeat themselves, repeat the prompt, or do neither.

repetitive   a table that goes on as it began
code         a program, and the same program begun again with one change
chat         questions; every other one comes back with its answer, to be put another way
random       tokens drawn at random
"""

from __future__ import annotations

import random
from collections.abc import Sequence

WORKLOADS = ("repetitive", "code", "chat", "random")

_QUESTIONS = (  # and an answer to each
    (
        "Why is the sky blue on a clear day and red in the evening?",
        "Air scatters blue light more than red light. During the day blue light reaches us from "
        "every part of the sky. In the evening sunlight crosses more air, most of the blue is "
        "scattered away, and what is left is red.",
    ),
    (
        "What should I think about before I adopt a dog?",
        "Think about time, money and space. A dog needs two or three walks a day. Food and the vet "
        "cost money every month. A small flat is fine for a small dog, but a large dog needs room. "
        "Decide who will look after the dog when you travel.",
    ),
    (
        "How does a refrigerator keep things cold?",
        "A liquid evaporates inside the refrigerator and takes up heat. A compressor pumps the gas "
        "outside and presses it together. There it becomes liquid again and gives off the heat.",
    ),
    (
        "Give me three ideas for a rainy weekend with two small children.",
        "Build a tent of blankets in the living room and read stories in it. Bake simple biscuits "
        "and let the children cut the shapes. Put on rain boots, go outside and jump into puddles.",
    ),
    (
        "What is the difference between weather and climate?",
        "Weather is what happens in the air today or this week. Climate is what the weather is "
        "like over many years. Weather changes from hour to hour, climate changes slowly.",
    ),
    (
        "Explain to a beginner how a bicycle stays upright.",
        "When a bicycle leans to one side, the front wheel turns to that side. The bicycle then "
        "rides a small curve, and the curve pushes it upright again. This works better the faster "
        "the bicycle goes.",
    ),
    (
        "How do I ask my manager for a day off in a short note?",
        "Say which day you would like to take off. Say who will take care of your work on that "
        "day. Ask whether that is all right, and say thank you.",
    ),
    (
        "Why do we have leap years?",
        "The earth needs a little more than 365 days to go round the sun. In four years that adds "
        "up to about one day. A leap year puts that day into the calendar.",
    ),
)
_ITEMS = ("apple", "bridge", "candle", "desert", "engine", "forest", "garden", "harbour")
_PROGRAM = """\
class {name}Settings:
    def __init__(self):
        self.width = 640
        self.height = 480
        self.title = "{thing}"
        self.colour = "blue"
        self.visible = True

    def set_width(self, width):
        if width < 1:
            raise ValueError("width must be positive")
        self.width = width

    def set_height(self, height):
        if height < 1:
            raise ValueError("height must be positive")
        self.height = height

    def set_title(self, title):
        self.title = title

    def set_colour(self, colour):
        self.colour = colour
"""


def text(workload: str, number: int) -> str:
    """Prompt `number` of the repetitive workload or of code; different numbers, other prompts."""
    item = _ITEMS[number % len(_ITEMS)]
    if workload == "repetitive":
        begin = 1 + number // len(_ITEMS)
        rows = "\n".join(f"row {begin + i}: {item}, blue, large, in stock" for i in range(12))
        return f"All rows of the table, in the same format:\n{rows}\n"
    name = item.title() + ("" if number < len(_ITEMS) else str(number))
    program = _PROGRAM.format(name=name, thing=item)
    return (
        f"Before:\n```python\n{program}```\n\n"
        f"After, with Options in place of Settings:\n```python\nclass {name}Options:"
    )


def conversation(number: int) -> list[dict[str, str]]:
    """The messages of prompt `number` of the chat workload."""
    question, answer = _QUESTIONS[number % len(_QUESTIONS)]
    if number >= len(_QUESTIONS):
        question = f"{question} (Question {number}.)"
    turns = [{"role": "user", "content": question}]
    if number % 2:
        turns.append({"role": "assistant", "content": answer})
        turns.append({"role": "user", "content": "Thanks. Please give me that as a list."})
    return turns


def random_ids(number: int, seed: int, length: int, vocab_size: int) -> Sequence[int]:
    """Prompt `number` of the random workload."""
    dice = random.Random(f"{seed} {number}")
    return [dice.randrange(3, vocab_size) for _ in range(length)]
