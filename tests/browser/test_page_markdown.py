"""Markdown as models write it, and as an attacker would."""

from __future__ import annotations

from typing import Any

from browser_page import Pages, answers, expect_answer, say
from helpers.live_server import Live
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from playwright.sync_api import Page, expect

RENDER = """async ([...texts]) => {
  const { renderMarkdown } = await import("/web/markdown.js");
  const target = document.createElement("div");
  for (const text of texts) renderMarkdown(target, text);
  return target.innerHTML;
}"""
EMPHASIS = [
    ("*a* and _b_", "<p><em>a</em> and <em>b</em></p>"),
    ("**a** and __b__", "<p><strong>a</strong> and <strong>b</strong></p>"),
    ("***a***", "<p><strong><em>a</em></strong></p>"),
    ("*a **b** c*", "<p><em>a <strong>b</strong> c</em></p>"),
    ("**a *b***", "<p><strong>a <em>b</em></strong></p>"),
    ("~~gone~~ ~x~", "<p><del>gone</del> ~x~</p>"),
    ("snake_case_name and 2 * 3 * 4", "<p>snake_case_name and 2 * 3 * 4</p>"),
    ("**open", "<p>**open</p>"),
    ("*.py and `*.js`", "<p>*.py and <code>*.js</code></p>"),
    (r"\*not\* \`this\`", "<p>*not* `this`</p>"),
    ("`a` ``b ` c`` `open", "<p><code>a</code> <code>b ` c</code> `open</p>"),
    ("`<b>` & <i>", "<p><code>&lt;b&gt;</code> &amp; &lt;i&gt;</p>"),
    ("one\ntwo<br>three", "<p>one<br>two<br>three</p>"),
]
BLOCKS = [
    ("# One\n## Two ##\n###### Six\n#no", "<h3>One</h3><h4>Two</h4><h6>Six</h6><p>#no</p>"),
    ("a\n\nb\n***\nc", "<p>a</p><p>b</p><hr><p>c</p>"),
    ("> a\n> > b", "<blockquote><p>a</p><blockquote><p>b</p></blockquote></blockquote>"),
    ("- a\n  - b\n  - c\n- d", "<ul><li>a<ul><li>b</li><li>c</li></ul></li><li>d</li></ul>"),
    ("1. a\n2. b", "<ol><li>a</li><li>b</li></ol>"),
    ("3) a\n\n4) b", '<ol start="3"><li>a</li><li>b</li></ol>'),
    ("1. a:\n   - b\n2. c", "<ol><li>a:<ul><li>b</li></ul></li><li>c</li></ol>"),
    ("1. a\n\n   more\n\n2. b", "<ol><li>a<p>more</p></li><li>b</li></ol>"),
    ("text:\n* a\n* b\n\nafter", "<p>text:</p><ul><li>a</li><li>b</li></ul><p>after</p>"),
    ("- a\nlazy", "<ul><li>a<br>lazy</li></ul>"),
    ("- a\n1. b", "<ul><li>a</li></ul><ol><li>b</li></ol>"),
    ("In 1999. it", "<p>In 1999. it</p>"),
    (
        "| a | b |\n|:--|--:|\n| `x|y` | \\| |\n| 1 |",
        '<table><thead><tr><th class="left">a</th><th class="right">b</th></tr></thead><tbody>'
        '<tr><td class="left"><code>x|y</code></td><td class="right">|</td></tr>'
        '<tr><td class="left">1</td><td class="right"></td></tr></tbody></table>',
    ),
    ("a | b\nno table", "<p>a | b<br>no table</p>"),
]  # fmt: skip
LINKS = [
    ("[a](https://e.org/x)", "https://e.org/x", "a"),
    ("see https://e.org/a_(b).", "https://e.org/a_(b", "https://e.org/a_(b"),
    ("<http://e.org>", "http://e.org/", "http://e.org"),
    ('[a [b]](https://e.org "t")', "https://e.org/", "a [b]"),
    ("![pic](https://e.org/p.png)", "https://e.org/p.png", "pic"),
    ("[https://a.org](https://e.org)", "https://e.org/", "https://a.org"),
    ("**[a](https://e.org)**", "https://e.org/", "a"),
]
ATTACKS = [
    "<script>window.hacked = 1</script>",
    "<img src=x onerror='window.hacked = 1'>",
    "<svg onload=window.hacked=1>",
    "[a](javascript:window.hacked=1)",
    "[a](JaVaScRiPt:window.hacked=1)",
    "[a]( java\tscript:window.hacked=1)",
    "[a](data:text/html,<script>window.hacked=1</script>)",
    "[a](vbscript:x) [b](file:///etc/passwd) [c](blob:x) [d](//e.org) [e](/v1/models)",
    "![x](x onerror=window.hacked=1)",
    '[a](https://e.org" onmouseover="window.hacked=1)',
    "[a](https://e.org/'onclick='window.hacked=1)",
    '```html"><script>window.hacked=1</script>\n</code></pre><script>window.hacked=1</script>\n```',
    "`</code><script>window.hacked=1</script>`",
    "| <img src=x onerror=window.hacked=1> |\n|--|\n| <iframe src=javascript:window.hacked=1> |",
    "# <style>*{display:none}</style>\n> <base href=//e.org>\n- <form action=//e.org><button>",
    "<a href='javascript:window.hacked=1'>x</a> &lt;script&gt;",
    "\u202e\u0000<script\u0000>window.hacked=1</script>",
    "[![a](javascript:window.hacked=1)](javascript:window.hacked=1)",
]
HARMLESS = {
    "P", "H3", "H4", "H5", "H6", "UL", "OL", "LI", "PRE", "CODE", "BLOCKQUOTE", "HR", "BR", "DIV",
    "TABLE", "THEAD", "TBODY", "TR", "TH", "TD", "STRONG", "EM", "DEL", "A", "SPAN", "BUTTON",
}  # fmt: skip
ATTRIBUTES = {
    "class", "tabindex", "role", "aria-label", "type", "data-copy", "start",
    "href", "rel", "target", "title",
}  # fmt: skip
PROVOKE = """async (wanted) => {
  const broken = new Set();
  const all = new Promise((resolve) => addEventListener("securitypolicyviolation", (event) => {
    broken.add(event.violatedDirective);
    if (broken.size === wanted.length) resolve();
  }));
  try {
    document.body.innerHTML = "<p>markup</p>";
  } catch {
    // a TypeError, as it should be
  }
  try {
    const script = document.createElement("script");
    script.textContent = "window.hacked = 1";
    document.body.append(script);
  } catch {
    // the same
  }
  new Image().src = "https://example.invalid/x.png";
  fetch("https://example.invalid/").catch(() => {});
  await all;
  return [...[...broken].sort(), window.hacked ?? null];
}"""
INSPECT = """async (text) => {
  const { renderMarkdown } = await import("/web/markdown.js");
  const target = document.createElement("div");
  renderMarkdown(target, text);
  document.body.append(target);
  const elements = [...target.querySelectorAll("*")];
  const found = {
    tags: [...new Set(elements.map(({ tagName }) => tagName))],
    attributes: [...new Set(elements.flatMap((each) => each.getAttributeNames()))],
    links: elements
      .filter(({ tagName }) => tagName === "A")
      .map((link) => ({ href: link.href, rel: link.rel, home: link.target })),
    nested: target.querySelector("a a") !== null,
    text: target.textContent,
    hacked: window.hacked ?? null,
  };
  target.remove();
  return found;
}"""


def rendered(page: Page, *texts: str) -> str:
    html: str = page.evaluate(RENDER, list(texts))
    return html


def assert_harmless(page: Page, text: str) -> dict[str, Any]:
    found: dict[str, Any] = page.evaluate(INSPECT, text)
    assert set(found["tags"]) <= HARMLESS
    assert set(found["attributes"]) <= ATTRIBUTES
    for link in found["links"]:
        assert link["href"].startswith(("http://", "https://")), link
        assert set(link["rel"].split()) >= {"noopener", "noreferrer"}
        assert link["home"] == "_blank"
    assert not found["nested"]
    assert found["hacked"] is None
    return found


def test_inside_a_line(page: Page) -> None:
    for text, html in EMPHASIS:
        assert rendered(page, text) == html, text


def test_blocks(page: Page) -> None:
    for text, html in BLOCKS:
        plain = rendered(page, text)
        plain = plain.replace(
            '<div class="table-scroll" tabindex="0" role="region" aria-label="Table">', ""
        )
        assert plain.replace("</table></div>", "</table>") == html, text


def test_code_is_shown_as_it_is(page: Page) -> None:
    code = "def f():\n    return '<b>' # **no**\n\n\n- x"
    for opened, closed in (
        ("```python\n", "\n```"),
        ("~~~~\n", "\n~~~~"),
        ("```\n", ""),
    ):
        text = opened + code + closed
        found = assert_harmless(page, "before\n" + text)
        assert code in found["text"], text
    assert "python" in assert_harmless(page, f"```python\n{code}\n```\nafter")["text"]
    assert rendered(page, "  ```\n    a\n b\n  ```").count("<code>  a\nb</code>") == 1
    inside_list = rendered(page, "1. do\n   ```sh\n   make\n     all\n   ```\n2. done")
    assert "<code>make\n  all</code>" in inside_list
    assert inside_list.count("<li>") == 2


def test_links_lead_to_the_web_alone(page: Page) -> None:
    for text, address, label in LINKS:
        found = assert_harmless(page, text)
        assert [link["href"] for link in found["links"]] == [address], text
        assert label in found["text"]
    assert not assert_harmless(page, "xhttps://e.org [a](https://) http:// [b]()")["links"]


def test_nothing_that_a_model_says_becomes_code(page: Page) -> None:
    for text in ATTACKS:
        assert_harmless(page, text)


def test_an_attack_through_the_whole_chat(page: Page, pages: Pages, served: Live) -> None:
    text = "Look: <img src=x onerror='window.hacked=1'> [go](javascript:window.hacked=1)"
    served.runner.says(text)
    say(page, text)
    expect_answer(page, text)
    expect(page.locator(".message.user .body")).to_have_text(text)
    assert page.locator(".message img, .message a").count() == 0
    assert page.evaluate("window.hacked ?? null") is None
    page.reload()
    page.get_by_role("button", name=text[:60], exact=True).click()  # the title is text, too
    expect_answer(page, text)
    assert page.evaluate("window.hacked ?? null") is None


def test_the_policy_would_stop_what_the_page_does_not_do(pages: Pages, served: Live) -> None:
    pages.allowed = ("policy:", "Content Security Policy", "TrustedHTML", "requires 'Trusted")
    page = pages.open(served.base_url)
    wanted = ["connect-src", "img-src", "require-trusted-types-for"]
    assert page.evaluate(PROVOKE, wanted) == [*wanted, None]


def test_a_stream_keeps_the_nodes_of_what_has_not_changed(page: Page) -> None:
    assert page.evaluate(
        """async () => {
            const { renderMarkdown } = await import("/web/markdown.js");
            const target = document.createElement("div");
            renderMarkdown(target, "# a\\n\\nb\\n\\nhal");
            const [heading, paragraph] = target.children;
            renderMarkdown(target, "# a\\n\\nb\\n\\nhalf\\n\\n- c");
            return target.children[0] === heading && target.children[1] === paragraph
              && target.children.length === 4;
        }"""
    )


PIECES = st.sampled_from(
    ["*", "**", "_", "~~", "`", "```", "\n", "\n\n", "- ", "1. ", "> ", "# ", "|", "|--|", "a", " ",
     "<b>", "[", "](", ")", "https://e.org", "\\", "    ", "!", "---", "javascript:", "é", "\r\n"]
)  # fmt: skip


def test_any_text_is_harmless_and_streams_to_the_same_end(page: Page) -> None:
    @settings(max_examples=60, suppress_health_check=list(HealthCheck))
    @given(st.lists(PIECES, max_size=40), st.integers(0, 200))
    def check(pieces: list[str], cut: int) -> None:
        text = "".join(pieces)
        assert rendered(page, text[:cut], text) == rendered(page, text)
        assert_harmless(page, text)

    check()


NASTY = {
    "stars": "*a " * 20_000,
    "strong": "**a" * 20_000,
    "mixed": "*_~~`" * 10_000,
    "ticks": "".join("`" * n + " " for n in range(250)),
    "brackets": "[" * 30_000,
    "links": "[a](" * 10_000,
    "quotes": ">" * 30_000,
    "nested": "\n".join(" " * n + "- x" for n in range(400)),
    "bars": "|" * 30_000 + "\n" + "|-" * 15_000,
    "hashes": "# " + "#" * 30_000 + " x",
    "spaces": " " * 60_000 + "x",
    "rules": "- " * 30_000 + "x",
    "one list": "- item *a*\n" * 5_000,
}


def test_nothing_takes_forever(page: Page) -> None:
    """Each is read in one go; work that grows with the square of these lengths would hang here."""
    for name, text in NASTY.items():
        page.set_default_timeout(30_000)
        assert rendered(page, text), name


def test_a_whole_answer_looks_right_in_the_chat(page: Page, served: Live) -> None:
    served.runner.says(
        "# Title\n\n- **a**\n- b\n\n| x | y |\n|---|---|\n| 1 | 2 |\n\n```py\nprint(1)\n```"
    )
    say(page, "All of it")
    answer = answers(page)
    expect(answer).to_have_attribute("aria-busy", "false")
    expect(answer.get_by_role("heading", name="Title")).to_be_visible()
    expect(answer.get_by_role("listitem")).to_have_count(2)
    expect(answer.get_by_role("cell", name="2")).to_be_visible()
    expect(answer.get_by_role("button", name="Copy py")).to_be_visible()


# How a text lies in its box: the blank to its left, and to its right.
BLANKS = """(node) => {
  const range = document.createRange();
  range.selectNodeContents(node);
  const [text, box] = [range.getBoundingClientRect(), node.getBoundingClientRect()];
  return [Math.round(text.left - box.left), Math.round(box.right - text.right)];
}"""


def test_texts_from_right_to_left_begin_on_the_right(page: Page, served: Live) -> None:
    served.runner.says("شكرا لك.\n\nEnglish.\n\n- نعم\n\n```\ncode()\n```")
    box = page.get_by_label("Message", exact=True)
    box.fill("مرحبا.")
    assert box.evaluate("(node) => getComputedStyle(node).unicodeBidi") == "plaintext"
    page.keyboard.press("Enter")
    answer = answers(page)
    expect(answer).to_have_attribute("aria-busy", "false")
    arabic, english = (answer.locator(".body > p").nth(i).evaluate(BLANKS) for i in range(2))
    assert arabic[1] <= 1 < arabic[0]
    assert english[0] <= 1 < english[1]
    left, right = answer.locator("li").evaluate(BLANKS)
    assert right <= 1 < left
    assert answer.locator("ul").evaluate("(node) => getComputedStyle(node).direction") == "rtl"
    assert answer.locator("code").evaluate("(node) => getComputedStyle(node).direction") == "ltr"
    said = page.locator(".message.user .body")
    assert said.evaluate("(node) => getComputedStyle(node).direction") == "rtl"
