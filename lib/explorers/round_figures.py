"""One round as HTML and SVG: the text so far by its writers, the numbers in sentences, the tree with its tokens."""

from html import escape
from math import isnan

from matplotlib.colors import to_rgb

from lib.decoding.walkthrough import DRAFT, PROMPT, TARGET, Step
from lib.lab.theme import ROLES
from lib.trees import drawing

WRITERS = {DRAFT: ROLES["accepted"], TARGET: ROLES["bonus"]}  # colours of the running text; the prompt has none
PROMPT_TAIL, PROMPT_LINES = 400, 6  # characters and lines of the prompt before the running text


def running_text(step: Step) -> str:
    """The text so far as HTML: the prompt's end in grey, draft tokens and the target's own each on their colour.

    This round's tokens are bold. `pre` keeps white space and prevents MathJax from reading dollar signs.
    """
    pieces, first_fresh = [], len(step.text) - step.fresh
    for place, (text, who) in enumerate(step.text):
        if who == PROMPT:
            tail = "\n".join(text[-PROMPT_TAIL:].split("\n")[-PROMPT_LINES:])
            pieces.append(f'<span style="color:#777">{"…" * (tail != text)}{escape(tail)}</span>')
            continue
        fresh = place >= first_fresh
        red, green, blue = (round(255 * part) for part in to_rgb(WRITERS[who]))
        strong = f"font-weight:600;border-bottom:2px solid {WRITERS[who]};" if fresh else ""
        inner = escape(text).replace("\n", '<span style="opacity:.5">↵</span>\n')
        pieces.append(f'<span title="{who}" style="background:rgba({red},{green},{blue},{0.5 if fresh else 0.22});'
                      f'border-radius:3px;box-shadow:inset -1px 0 0 #fff;{strong}">{inner}</span>')
    return ('<div style="display:flex;flex-direction:column-reverse;max-height:15em;overflow:auto;background:#fff;'
            'border:1px solid #ddd;border-radius:4px;padding:8px 10px">'  # reversed: it stays scrolled to its end
            '<pre style="flex:none;overflow:visible;white-space:pre-wrap;word-break:normal;overflow-wrap:anywhere;'
            'margin:0;padding:0;background:#fff;color:#222;'
            f'font:13px/1.65 DejaVu Sans Mono,Menlo,Consolas,monospace">{"".join(pieces)}</pre></div>')


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
    accepted = f"<b>{len(step.accepted)}</b> of {step.tree.budget} draft tokens accepted"
    end = f"; the text ends after the first {step.fresh} of these" if step.fresh <= len(step.accepted) else ""
    return (f"Round {step.number} of {step.of}: {accepted}, then the target's own{end}. So far, over {step.number} "
            f"round{'s' * (step.number != 1)}: acceptance rate {share}, acceptance length <b>{step.length:.2f}</b> "
            f"tokens per round, <b>{step.speed:.0f}</b> tokens per second"
            + ("." if isnan(plain) else f" ({plain:.0f} plainly)."))


def tree_svg(step: Step) -> str:
    """The round's tree with its tokens; on the line to each node the drafter's probability, if it has one, and the rank
    among its siblings.
    """
    ranks = [f"#{rank}" for rank in step.tree.rank]
    chances = ["" if step.probabilities is None else "<1% " if chance < 0.005 else f"{chance:.0%} "
               for chance in step.probabilities or ranks]
    return drawing.as_svg(drawing.draw_tree(
        step.tree, labels=[drawing.visible(token) for token in step.tokens], accepted=step.accepted,
        bonus=drawing.visible(step.bonus), notes=[chance + rank for chance, rank in zip(chances, ranks)]))
