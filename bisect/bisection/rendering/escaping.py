"""Text from strangers, made harmless: commit subjects, authors, error messages, configuration values.

Every renderer passes such text through `visible` first and then through the escaping of its own
format, which lives here too. Nothing here knows what a report is.
"""

from __future__ import annotations

import html
import re
import unicodedata

#: Longer than any honest subject line; a report of megabytes is an attack on its readers.
LONGEST_TEXT = 600

#: Unicode's invisible and direction-changing characters: categories Cc, Cf, Co, Cs, Zl and Zp, and
#: the variation selectors and fillers that draw nothing though they are marks or letters.
_HIDDEN_CATEGORIES = frozenset({"Cc", "Cf", "Co", "Cs", "Cn", "Zl", "Zp"})
_HIDDEN_OTHERS = re.compile("[\u034f\u115f\u1160\u17b4\u17b5\u180b-\u180d\u3164\ufe00-\ufe0f\uffa0]")
#: More combining marks in a row than any script needs: they would paint over the neighbouring lines.
_MARK_PILE = re.compile(
    r"([\u0300-\u036f\u1ab0-\u1aff\u1dc0-\u1dff\u20d0-\u20ff]{2})[\u0300-\u036f\u1ab0-\u1aff\u1dc0-\u1dff\u20d0-\u20ff]+"
)


def visible(text: str, *, limit: int = LONGEST_TEXT) -> str:
    """One line on which every character shows: hidden ones become their escape, e.g. ``\\u202e``.

    Line breaks and tabs become spaces. Longer text than ``limit`` characters is cut, with a sign.
    """
    if len(text) > limit:
        text = text[: limit - 1] + "…"
    text = re.sub(r"[\r\n\t]+", " ", text)
    shown = "".join(_escape(c) if _is_hidden(c) else c for c in text)
    return _MARK_PILE.sub(r"\1", shown)


def terminal_safe(text: str, *, limit: int = 20_000) -> str:
    """Several lines for a terminal or a code block, each made visible; tabs become spaces."""
    return "\n".join(_visible_indented(line) for line in text[:limit].split("\n"))


def _visible_indented(line: str) -> str:
    stripped = line.lstrip(" ")
    return " " * (len(line) - len(stripped)) + visible(stripped, limit=4_000)


def _is_hidden(character: str) -> bool:
    return unicodedata.category(character) in _HIDDEN_CATEGORIES or bool(_HIDDEN_OTHERS.match(character))


def _escape(character: str) -> str:
    code = ord(character)
    return f"\\x{code:02x}" if code < 0x100 else f"\\u{code:04x}" if code < 0x10000 else f"\\U{code:08x}"


def markup(text: str) -> str:
    """For the text and the attributes of HTML and SVG."""
    return html.escape(visible(text), quote=True)


def prose(text: str) -> str:
    """For GitHub's Markdown: one line of ours that may quote a stranger; it comes out as it went in.

    Mentions, references and bare links act on plain text, and no backslash stops them: an invisible
    space inside them does.
    """
    shown = visible(text, limit=4_000).replace("&", "&amp;").replace("<", "&lt;")
    shown = re.sub(r"([\\`*_{}\[\]#>~|$])", r"\\\1", shown)
    # No zero-width space is left after `visible`, so it can stand for the break until the end.
    shown = re.sub(r"^(\s*)([-+=]|\d+(?=[.)](?:\s|$)))", "\\1\u200b\\2", shown)
    shown = re.sub(r"([@#])(?=\w)", "\\1\u200b", shown)
    shown = re.sub(r"(?i)\b(GH|www)(?=[-.])", "\\1\u200b", shown)
    return shown.replace("://", ":\u200b//").replace("\u200b", "&#8203;")


def code_span(text: str, *, in_table: bool = False) -> str:
    """For GitHub's Markdown: a code span, in which no HTML, link, mention or reference works.

    The fence is longer than any run of backticks inside. In a table a bar would end the cell, code
    or not, so there it is escaped as GitHub's tables ask.
    """
    shown = visible(text) or " "
    runs = [len(run) for run in re.findall(r"`+", shown)]
    fence = "`" * (max(runs, default=0) + 1)
    padding = " " if shown.startswith("`") or shown.endswith("`") else ""
    span = f"{fence}{padding}{shown}{padding}{fence}"
    # A backslash right before the bar would escape the escape.
    return span.replace("\\|", "\\ |").replace("|", "\\|") if in_table else span


def code_block(text: str, *, language: str = "") -> str:
    """A fenced block for Markdown; the fence is longer than any inside."""
    shown = terminal_safe(text.rstrip("\n"))
    runs = [len(run) for run in re.findall(r"`{3,}", shown)]
    fence = "`" * max(3, max(runs, default=0) + 1)
    return f"{fence}{language}\n{shown}\n{fence}"
