"""CHAT-08: a hostile template ends soon, small, and as a RequestError."""

from __future__ import annotations

import time
import tracemalloc

import pytest

from tinyserve.errors import RequestError
from tinyserve.text import sandbox
from tinyserve.text.template import ChatTemplate

ESCAPES = {
    "mro": '{{ "".__class__.__mro__ }}',
    "globals": "{{ raise_exception.__globals__ }}",
    "attr": '{{ ""|attr("__class__")|attr("__mro__") }}',
    "format": '{{ "{0.__class__}".format(1) }}',
    "item": '{{ messages["__class__"]["__base__"] }}',
    "append": '{{ messages.append("x") }}',
    "update": '{{ messages[0].update({"role": "x"}) }}',
    "self": "{{ self.__init__.__globals__ }}",
    "import": '{% import "os" as os %}',
}
BOMBS = {
    "range": "{% for i in range(10**9) %}x{% endfor %}",
    "nested": "{% for i in range(99999) %}{% for j in range(99999) %}x{% endfor %}{% endfor %}",
    "silent": "{% for i in range(99999) %}{% for j in range(99999) %}{% endfor %}{% endfor %}",
    "filter loop": "{% for i in range(99999) %}{% for j in range(99999)|map('abs') %}"
    "{% endfor %}{% endfor %}",
    "repeat": "{{ 'x' * 10**10 }}",
    "repeat reversed": "{{ 10**10 * 'x' }}",
    "repeat list": "{{ ([0] * 10**9) | length }}",
    "power": "{{ 2 ** (10 ** 10) }}",
    "powers": "{% set n = namespace(x=99) %}{% for i in range(99) %}"
    "{% set n.x = n.x * n.x %}{% endfor %}",
    "doubling +": "{% set n = namespace(x='x') %}{% for i in range(99) %}"
    "{% set n.x = n.x + n.x %}{% endfor %}",
    "doubling ~": "{% set n = namespace(x='x') %}{% for i in range(99) %}"
    "{% set n.x = n.x ~ n.x %}{% endfor %}",
    "doubling list": "{% set n = namespace(x=[1]) %}{% for i in range(99) %}"
    "{% set n.x = n.x + n.x %}{% endfor %}",
    "ljust": "{{ 'x'.ljust(10**10) }}",
    "center": "{{ 'x' | center(10**10) }}",
    "indent": "{{ 'x\n' | indent(10**10) }}",
    "batch": "{{ [1] | batch(10**9, 0) | list | length }}",
    "percent": "{{ '%10000000000d' % 1 }}",
    "percent star": "{{ '%*d' % (10**9, 1) }}",
    "format filter": "{{ '%1000000000d' | format(1) }}",
    "format method": "{{ '{:10000000000}'.format(1) }}",
    "format nested": "{{ '{:{}}'.format(1, '9999999999') }}",
    "format map": "{{ '{x:9999999999}'.format_map({'x': 1}) }}",
    "replace": "{{ ('x' * 10**6).replace('x', 'y' * 10**6) }}",
    "replace filter": "{{ ('x' * 10**6) | replace('x', 'y' * 10**6) }}",
    "join": "{{ range(99999) | join('y' * 10**6) }}",
    "join method": "{{ ('y' * 10**6).join('x' * 10**6) }}",
    "tojson": "{{ {'a': 1} | tojson(indent=10**10) }}",
    "macro": "{% macro f(n) %}{% if n %}{{ f(n - 1) }}{{ f(n - 1) }}{% endif %}{% endmacro %}"
    "{{ f(60) }}",
    "recursion": "{% macro f() %}{{ f() }}{% endmacro %}{{ f() }}",
    "recursive loop": "{% for i in [1] recursive %}{{ loop([1, 1]) }}{% endfor %}",
    "output": "{% for i in range(1000) %}{{ 'x' * 10**6 }}{% endfor %}",
    "bytes": "{{ (1).to_bytes(10**10) }}",
    "lipsum": "{{ lipsum(10**6) }}",
}


@pytest.mark.parametrize("source", ESCAPES.values(), ids=ESCAPES)
def test_no_way_out_of_the_sandbox(source: str) -> None:
    """CHAT-08: refused, or nothing to see; the messages are not changed."""
    messages = [{"role": "user", "content": "x"}]
    try:
        shown = ChatTemplate(source).render(messages)
    except RequestError:
        shown = ""
    assert "class" not in shown
    assert messages == [{"role": "user", "content": "x"}]


@pytest.mark.parametrize("source", BOMBS.values(), ids=BOMBS)
def test_bombs_are_defused(source: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """CHAT-08: a RequestError, within seconds and without much memory."""
    monkeypatch.setattr(sandbox, "MAX_ROUNDS", 5_000)  # so that the test is fast
    template = ChatTemplate(source)
    start = time.monotonic()
    tracemalloc.start()
    try:
        with pytest.raises(RequestError) as caught:
            template.render([{"role": "user", "content": "x"}])
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert caught.value.param == "messages"
    assert peak < 256 << 20
    assert time.monotonic() - start < sandbox.MAX_SECONDS + 5


def test_a_template_may_not_run_beyond_its_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sandbox, "MAX_SECONDS", -1.0)
    with pytest.raises(RequestError, match="seconds"):
        ChatTemplate("{% for i in [1] %}{% endfor %}").render([{"role": "user", "content": "x"}])


def test_a_pause_is_none_of_a_templates_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """Else another form of the conversation would be tried, and the prompt be another one."""
    monkeypatch.setattr(sandbox, "MAX_SECONDS", 0.2)
    monkeypatch.setattr(sandbox, "_strftime_now", lambda pattern: time.sleep(0.4) or "now")
    source = "{{ strftime_now('%d') }}{% for m in messages %}{{ m.role }}{% endfor %}"
    assert ChatTemplate(source).render([{"role": "user", "content": "x"}]) == "nowuser"


def test_renders_do_not_share_a_budget(monkeypatch: pytest.MonkeyPatch) -> None:
    """A long chat every time, many times over one template."""
    monkeypatch.setattr(sandbox, "MAX_ROUNDS", 1_000)
    template = ChatTemplate("{% for m in messages %}{{ m.content }}{% endfor %}")
    messages = [{"role": "user", "content": "x"}] * 600
    for _ in range(5):
        assert len(template.render(messages)) == 600


def test_ordinary_formatting_passes() -> None:
    """What the limits look for must not be mistaken in real templates."""
    source = (
        "{{ '**%s** 100%%' % 'b' }}|{{ '{:>5}'.format(1) }}|{{ 'a{}' * 3 }}"
        "|{{ 'a\nb' | indent(2) }}"
        "|{{ ['a', 'b'] | join(', ') }}|{{ 1700000000 | string }}|{{ 'a-b'.replace('-', '+') }}"
        "|{{ {'n': 1} | tojson(indent=2) }}|{{ loop is defined }}"
        "{% for m in messages %}{{ loop.last }}{{ loop.length }}{{ loop.index }}{% endfor %}"
    )
    shown = ChatTemplate(source).render([{"role": "user", "content": "x"}])
    assert shown == (
        '**b** 100%|    1|a{}a{}a{}|a\n  b|a, b|1700000000|a+b|{\n  "n": 1\n}|FalseTrue11'
    )
