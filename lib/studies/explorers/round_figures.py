"""One round in pictures: the tree with its tokens, the text so far coloured by its writers, the numbers in words."""

import re
from functools import cache
from html import escape

import matplotlib.pyplot as plt
import numpy as np
from matplotlib.colors import to_rgb
from matplotlib.figure import Figure
from matplotlib.font_manager import findfont, get_font

from lib.lab.theme import ROLES
from lib.studies.explorers.walkthrough import DRAFT, PROMPT, TARGET, UNFINISHED, Step
from lib.trees.drawing import draw_tree, positions
from lib.trees.tree import Tree

WRITERS = {DRAFT: ROLES["accepted"], TARGET: ROLES["bonus"]}  # colours of the running text; the prompt has none
LONGEST = 12  # characters of a token that a box shows
DEEPEST = 7  # levels that are drawn, unless more are accepted
PROMPT_TAIL, PROMPT_LINES = 400, 6  # characters and lines of the prompt before the running text
FONTS = ["DejaVu Sans Mono", "DejaVu Sans"]  # they come with matplotlib and have the signs for white space


def draw_round(step: Step) -> Figure:
    """A round's tree, the root left: each node's token, with the drafter's probability of it left of its box.

    The accepted path is coloured and ends in the target's bonus token; rejected nodes are grey; white space is shown by
    signs. Of a deep tree only the first levels are drawn, at least up to the end of the accepted path.
    """
    tree = _first_levels(step.tree, max(DEEPEST, len(step.accepted) + 1))
    wide, deep = np.ptp(positions(tree)) + 1, tree.max_depth
    size = 1.3 * (deep + 2), (0.42 if wide < 20 else 0.3) * wide + 1.3
    figure, axis = plt.subplots(figsize=size, layout="constrained")
    draw_tree(tree, labels=[visible(token) for token in step.tokens[: tree.size]], accepted=step.accepted,
              bonus=visible(step.bonus), axis=axis)
    axis.set_xlim(-0.55, deep + 1.55)  # room for a bonus token after the deepest node, the same in all rounds
    for box in axis.texts:
        box.set_fontfamily(FONTS)
    if step.probabilities is not None:
        _write_probabilities(axis, step, tree.size)
    hidden = f" (of {step.tree.max_depth} levels {deep} are drawn)" if tree.size < step.tree.size else ""
    axis.set_title(f"Round {step.number} of {step.of}{hidden}")
    return figure


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
    signs = "%: the drafter's probability of a node after its parent; · a space, ↵ a line's end"
    entries = [f'<span style="white-space:nowrap;margin-right:1.6em">{entry}</span>' for entry in [*patches, signs]]
    return f'<div style="font-size:12px;line-height:2">{" ".join(entries)}</div>'


def describe_round(step: Step) -> str:
    """The round and the running totals in a sentence each, as HTML."""
    share = "–" if step.rate is None else f"<b>{step.rate:.2f}</b>"
    kept = f"<b>{len(step.accepted)}</b> of {step.tree.budget} draft tokens accepted"
    end = f"; the text ends after the first {step.fresh} of these" if step.fresh <= len(step.accepted) else ""
    return (f"Round {step.number} of {step.of}: {kept}, then the target's own{end}. So far, over {step.number} "
            f"round{'s' * (step.number != 1)}: acceptance rate {share}, acceptance length <b>{step.length:.2f}</b> "
            "tokens per round.")


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


def _first_levels(tree: Tree, deepest: int) -> Tree:
    """The nodes down to a depth; in level order, as shapes give them, they are the first ones."""
    kept = int((tree.depth <= deepest).sum())
    if (tree.depth[:kept] <= deepest).all():
        return Tree(tree.parents[:kept], tree.rank[:kept])
    return tree


def _write_probabilities(axis, step: Step, size: int) -> None:
    """Each node's probability left of its box, above the edge that leads to it."""
    boxes = list(axis.texts)[:size]
    for node in range(1, size):
        lit, chance = node in step.accepted, step.probabilities[node]
        axis.annotate("<1%" if chance < 0.005 else f"{chance:.0%}", xy=(0, 0.5), xycoords=boxes[node], xytext=(-6.5, 0),
                      textcoords="offset points", ha="right", va="center", fontsize=7.5, zorder=3,
                      color="black" if lit else "#666666", weight="bold" if lit else "normal",
                      bbox=dict(boxstyle="round,pad=0.45", facecolor="white", edgecolor="none"))


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
