"""One round as HTML and SVG: the text so far by its writers, the numbers in sentences, the tree with its tokens."""

import re
from collections.abc import Sequence
from functools import cache
from html import escape
from math import isnan

from matplotlib.colors import to_rgb
from matplotlib.font_manager import findfont, get_font

from lib.lab.theme import ROLES
from lib.explorers.walkthrough import DRAFT, PROMPT, TARGET, UNFINISHED, Step
from lib.trees.tree import ROOT

WRITERS = {DRAFT: ROLES["accepted"], TARGET: ROLES["bonus"]}  # colours of the running text; the prompt has none
LONGEST = 12  # characters of a token that a box shows
PROMPT_TAIL, PROMPT_LINES = 400, 6  # characters and lines of the prompt before the running text
FONTS = ["DejaVu Sans Mono", "DejaVu Sans"]  # they come with matplotlib and have the signs for white space
ROW, LEVEL, LETTER = 26, 62, 7.3  # pixels: between rows, from a box to the next level, of a letter
DARK = {ROLES["root"], ROLES["accepted"]}  # boxes with light letters


def running_text(step: Step) -> str:
    """The text so far as HTML: the prompt's end in grey, draft tokens and the target's own each on their colour.

    This round's tokens are bold. `pre` keeps white space and prevents MathJax from reading dollar signs.
    """
    first_fresh = len(step.text) - step.fresh
    body = "".join(_prompt(text) if who == PROMPT else _token(text, who, fresh=place >= first_fresh)
                   for place, (text, who) in enumerate(step.text))
    return ('<div style="display:flex;flex-direction:column-reverse;max-height:15em;overflow:auto;background:#fff;'
            'border:1px solid #ddd;border-radius:4px;padding:8px 10px">'  # reversed: it stays scrolled to its end
            '<pre style="flex:none;overflow:visible;white-space:pre-wrap;word-break:normal;overflow-wrap:anywhere;'
            'margin:0;padding:0;background:#fff;color:#222;'
            f'font:13px/1.65 DejaVu Sans Mono,Menlo,Consolas,monospace">{body}</pre></div>')


def legend() -> str:
    """The meaning of the colours, numbers and signs of tree and text, as HTML."""
    meaning = {"root": "root, the last committed token", "accepted": "drafted and accepted",
               "rejected": "drafted, rejected", "bonus": "the target's own token"}
    square = "display:inline-block;width:.9em;height:.9em;border-radius:3px;vertical-align:-.1em"
    patches = [f'<span style="{square};background:{ROLES[role]}"></span>&nbsp; {text}'
               for role, text in meaning.items()]
    signs = "%: the drafter's probability of a node after its parent; #: its rank; · a space, ↵ a line's end"
    entries = [f'<span style="white-space:nowrap;margin-right:1.6em">{entry}</span>' for entry in [*patches, signs]]
    return f'<div style="font-size:12px;line-height:2">{" ".join(entries)}</div>'


def describe_round(step: Step, plain: float = float("nan")) -> str:
    """The round and the running totals in a sentence each, as HTML. plain: tokens per second of plain decoding."""
    share = "–" if step.rate is None else f"<b>{step.rate:.2f}</b>"
    kept = f"<b>{len(step.accepted)}</b> of {step.tree.budget} draft tokens accepted"
    end = f"; the text ends after the first {step.fresh} of these" if step.fresh <= len(step.accepted) else ""
    return (f"Round {step.number} of {step.of}: {kept}, then the target's own{end}. So far, over {step.number} "
            f"round{'s' * (step.number != 1)}: acceptance rate {share}, acceptance length <b>{step.length:.2f}</b> "
            f"tokens per round, <b>{step.speed:.0f}</b> tokens per second"
            + ("." if isnan(plain) else f" ({plain:.0f} plainly)."))


def visible(text: str, longest: int = LONGEST) -> str:
    """A token as a label: signs for white space, runs of it counted, and no longer than so many characters."""
    text = text.replace("\r\n", "\n").replace("\n", "↵").replace("\t", "⇥").replace(" ", "·")
    text = re.sub(r"(·|↵|⇥)\1{3,}", lambda run: f"{run[1]}×{len(run[0])}", text)
    text = "".join(sign if sign.isprintable() and ord(sign) in _drawable() else UNFINISHED for sign in text)
    return text if len(text) <= longest else text[: longest - 1] + "…"


@cache
def _drawable() -> frozenset[int]:
    """The characters that the fonts have; matplotlib warns of any other."""
    return frozenset().union(*(get_font(findfont(name)).get_charmap() for name in FONTS))


def _prompt(text: str) -> str:
    tail = "\n".join(text[-PROMPT_TAIL:].split("\n")[-PROMPT_LINES:])
    return f'<span style="color:#777">{"…" * (tail != text)}{escape(tail)}</span>'


def _token(text: str, who: str, fresh: bool) -> str:
    red, green, blue = (round(255 * part) for part in to_rgb(WRITERS[who]))
    inner = escape(text).replace("\n", '<span style="opacity:.5">↵</span>\n')
    strong = f"font-weight:600;border-bottom:2px solid {WRITERS[who]};" if fresh else ""
    paint = f"rgba({red},{green},{blue},{0.5 if fresh else 0.22})"
    return (f'<span title="{who}" style="background:{paint};border-radius:3px;box-shadow:inset -1px 0 0 #fff;{strong}">'
            f"{inner}</span>")


# ------------------------------------------------------------------------------------------------------ the tree as SVG


def tree_svg(step: Step) -> str:
    """The round's tree: each node's token in a box of the colour of its role; before it the drafter's probability, if
    it has one, and the node's rank. The bonus token is right of the accepted path, in the same row.
    """
    tree, parents, roles = step.tree, step.parents, step.roles
    labels = [visible(token) for token in (*step.tokens, step.bonus)]
    depths = [*tree.depth.tolist(), int(tree.depth[parents[-1]]) + 1]
    rows = rows_of(parents, [*tree.rank.tolist(), -1])  # the bonus token before all children
    lefts = _lefts(labels, depths)
    drawn = []
    for node in range(1, len(labels)):
        above, depth, lit = parents[node], depths[node], roles[node] != "rejected"
        start = lefts[depth - 1] + _width(labels[above]), _centre(rows[above])
        drawn.append(_edge(start, (lefts[depth], _centre(rows[node])), lit))
        if node < tree.size:
            drawn.append(_before(lefts[depth], rows[node], lit, step, node))
    drawn += [_box(lefts[depth], row, label, ROLES[role])
              for depth, row, label, role in zip(depths, rows, labels, roles)]
    width, height = lefts[-1] + _width(max(labels, key=len)) + 4, ROW * (max(rows) + 1) + 8
    return (f'<svg xmlns="http://www.w3.org/2000/svg" width="{width:.0f}" height="{height}" '
            f'font-family="DejaVu Sans Mono,Menlo,Consolas,monospace" font-size="12">{"".join(drawn)}</svg>')


def rows_of(parents: Sequence[int], ranks: Sequence[int]) -> list[int]:
    """The row of each node: leaves take rows from the top, siblings in the order of ranks, and a parent has the row of
    its first child.
    """
    children: list[list[int]] = [[] for _ in parents]
    for node in range(1, len(parents)):
        children[parents[node]].append(node)
    rows, free, waiting = [0] * len(parents), 0, [ROOT]
    while waiting:
        node = waiting.pop()
        rows[node] = free
        waiting += sorted(children[node], key=lambda child: -ranks[child])
        free += not children[node]
    return rows


def _lefts(labels: Sequence[str], depths: Sequence[int]) -> list[float]:
    """The left edge of the boxes of each level."""
    lefts = [4.0]
    for level in range(max(depths)):
        lefts.append(lefts[-1] + max(_width(label) for label, own in zip(labels, depths) if own == level) + LEVEL)
    return lefts


def _edge(start: tuple[float, int], end: tuple[float, int], lit: bool) -> str:
    colour, width = ("#222", 2) if lit else ("#bbb", 1)
    return (f'<path d="M{start[0]:.0f} {start[1]}H{end[0] - LEVEL + 8:.0f}V{end[1]}H{end[0]:.0f}" fill="none" '
            f'stroke="{colour}" stroke-width="{width}"/>')


def _before(left: float, row: int, lit: bool, step: Step, node: int) -> str:
    """What stands on a node's edge: its probability and its rank."""
    chance = None if step.probabilities is None else step.probabilities[node]
    told = "" if chance is None else "&lt;1% " if chance < 0.005 else f"{chance:.0%} "
    return (f'<text x="{left - 4:.0f}" y="{_centre(row) - 4}" text-anchor="end" font-size="9.5" fill="#444" '
            f'font-weight="{"bold" if lit else "normal"}">{told}#{int(step.tree.rank[node])}</text>')


def _box(left: float, row: int, label: str, colour: str) -> str:
    letters = "#fff" if colour in DARK else "#222"
    return (f'<rect x="{left:.0f}" y="{_centre(row) - 9}" width="{_width(label):.0f}" height="18" rx="4" '
            f'fill="{colour}"/><text x="{left + 5:.0f}" y="{_centre(row) + 4}" fill="{letters}">{escape(label)}</text>')


def _width(label: str) -> float:
    return LETTER * max(len(label), 1) + 10


def _centre(row: int) -> int:
    return ROW * row + 16
