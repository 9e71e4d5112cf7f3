"""Draws masked text as an SVG: a cell for each token, a line over each unit, a bar for how often each is chosen.

It is ours because a picture is a few hundred rectangles and words: what terminal libraries export is ten times as
large, and cannot draw lines over units. Glyphs are those of any monospaced font; `textLength` fixes their width.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from xml.sax.saxutils import escape

WIDTH, MARGIN = 860, 16
ADVANCE = 7.4  # of a character
CELL, GAP_ABOVE = 22, 9  # heights of a cell, and of the room over it for the line of its unit
BELOW, BAR, BETWEEN = 13, 24, 10  # heights of the room for random tokens, of the tallest bar, and under the bars
SPACE = 7  # between words
FULL_BAR = 0.6  # share that the tallest bar stands for
# Classes of rectangles and of words; one letter each, since there are hundreds.
STYLE = (
    "text{fill:#1b1b1b;text-anchor:middle}.n{fill:#f1f1ee}.m{fill:#b3261e}.r{fill:#f2b705}.k{fill:#2e7d32}"
    ".o{fill:#bccbe0}.u{fill:#2f5d9b}.b{fill:#9aa5b1}.e{fill:#1b1b1b}text.w{fill:#fff}text.i{fill:#8a6d00;font-style:italic}"
    "text.l{fill:#444;text-anchor:start}"
)
KIND = {"mask": "m", "random": "r", "kept": "k", "": "n"}
LEGEND = (
    ("mask", "masked"),
    ("random", "another token (below) stands there"),
    ("kept", "to be predicted, unchanged"),
)


@dataclass(frozen=True)
class Token:
    """What is drawn of a token.

    Attributes:
        text: As it is spelled, without marks.
        state: `mask`, `random` or `kept` for a target, empty for the rest.
        shown: The token that stands in its place, where that is a random one.
        begins_word: Whether there is room before it.
        begins_unit: Whether a unit begins here.
        unit_size: Tokens of its unit.
        share: How often it is a target over many epochs.
    """

    text: str
    state: str = ""
    shown: str = ""
    begins_word: bool = True
    begins_unit: bool = True
    unit_size: int = 1
    share: float = 0.0


def picture(title: str, blocks: Sequence[Sequence[Token]], rate: float) -> str:
    """An SVG of a text under one strategy.

    Args:
        title: For those who cannot see it.
        blocks: The tokens, once for each epoch that is drawn; bars are drawn under the last.
        rate: Expected share of targets, which is marked in the bars.
    """
    parts: list[str] = []
    top = MARGIN
    for number, tokens in enumerate(blocks):
        drawn, top = _block(tokens, top, rate if number == len(blocks) - 1 else None)
        parts += drawn
        top += BETWEEN if len(blocks) > 1 else 0
    legend, top = _legend(top, rate)
    height = top + MARGIN
    head = (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height}" width="{WIDTH}" height="{height}" '
        'role="img" font-family="ui-monospace, Menlo, Consolas, \'DejaVu Sans Mono\', monospace" font-size="12">'
    )
    background = f'<rect width="{WIDTH}" height="{height}" rx="6" fill="#fff"/>'
    about = [f"<title>{escape(title)}</title>", f"<style>{STYLE}</style>"]
    return "\n".join([head, *about, background, *parts, *legend, "</svg>"]) + "\n"


def _block(tokens: Sequence[Token], top: int, rate: float | None) -> tuple[list[str], int]:
    """A text in lines, and where it ends."""
    parts, left = [], float(MARGIN)
    step = GAP_ABOVE + CELL + BELOW + (0 if rate is None else BAR + BETWEEN)
    for tokens_of_word in _words(tokens):
        widths = [max(len(token.text), len(token.shown)) * ADVANCE + 8 for token in tokens_of_word]
        if left > MARGIN and left + sum(widths) > WIDTH - MARGIN:
            left, top = float(MARGIN), top + step
        for place, (token, width) in enumerate(zip(tokens_of_word, widths, strict=True)):
            joins_before = place > 0 or left == MARGIN
            parts += _cell(token, left, top, width, rate, bridge=not joins_before)
            left += width + 1
        left += SPACE
    return parts, top + step


def _words(tokens: Sequence[Token]) -> list[list[Token]]:
    words: list[list[Token]] = []
    for token in tokens:
        if token.begins_word or not words:
            words.append([])
        words[-1].append(token)
    return words


def _cell(token: Token, left: float, top: int, width: float, rate: float | None, *, bridge: bool) -> list[str]:
    """A token, the line over its unit, the random token below and its bar. `bridge`: a space was left before it."""
    cell_top = top + GAP_ABOVE
    parts = [_rect(left, cell_top, width, CELL, KIND[token.state])]
    parts.append(_text(token.text, left + width / 2, cell_top + 15, "w" if token.state in ("mask", "kept") else ""))
    begin = left + 2 if token.begins_unit else left - (SPACE + 1 if bridge else 1)
    parts.append(_rect(begin, top + 2, left + width - begin, 3.5, "o" if token.unit_size == 1 else "u"))
    if token.shown:
        parts.append(_text(token.shown, left + width / 2, cell_top + CELL + 11, "i"))
    if rate is not None:
        base = cell_top + CELL + BELOW + BAR
        if high := BAR * min(token.share / FULL_BAR, 1.0):
            parts.append(_rect(left + 2, base - high, width - 4, high, "b"))
        parts.append(_rect(left + 2, base - BAR * rate / FULL_BAR - 0.5, width - 4, 1, "e"))
    return parts


def _legend(top: int, rate: float) -> tuple[list[str], int]:
    parts, left = [], float(MARGIN)
    for state, words in LEGEND:
        parts += [_rect(left, top, 12, 12, KIND[state]), _text(words, left + 18, top + 10, "l")]
        left += 18 + len(words) * ADVANCE + 20
    top += 20
    words = (
        f"lines above: units; bars: how often a token is a target over many epochs; the mark in them is at {rate:.0%}"
    )
    parts.append(_text(words, MARGIN, top + 10, "l"))
    return parts, top + 12


def _rect(x: float, y: float, width: float, height: float, kind: str) -> str:
    return f'<rect class="{kind}" x="{x:.1f}" y="{y:g}" width="{width:.1f}" height="{height:.1f}"/>'


def _text(words: str, x: float, y: float, kind: str) -> str:
    named = f' class="{kind}"' if kind else ""
    length = len(words) * ADVANCE
    return f'<text{named} x="{x:.1f}" y="{y:g}" textLength="{length:.1f}">{escape(words)}</text>'
