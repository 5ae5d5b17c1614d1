"""A round's tree as an SVG drawing, which a page shows at once: the root top left, the drafter's favourites on top."""

from collections.abc import Sequence
from html import escape

from lib.lab.theme import ROLES
from lib.studies.explorers.round_figures import visible
from lib.studies.explorers.walkthrough import Step
from lib.trees.tree import ROOT

ROW, LEVEL, LETTER = 26, 62, 7.3  # pixels: between rows, from a box to the next level, of a letter
DARK = {ROLES["root"], ROLES["accepted"]}  # boxes with light letters


def drawing(step: Step) -> str:
    """The round's tree: each node's token in a box of the colour of its role; before it the drafter's probability, if
    it has one, and the node's rank. The bonus token is right of the accepted path, in the same row.
    """
    tree, end = step.tree, step.accepted[-1] if step.accepted else ROOT
    labels = [visible(token) for token in (*step.tokens, step.bonus)]
    parents, depths = [*tree.parents.tolist(), end], [*tree.depth.tolist(), int(tree.depth[end]) + 1]
    rows = rows_of(parents, [*tree.rank.tolist(), -1])  # the bonus token before all children
    lefts = _lefts(labels, depths)
    roles = ["root", *("accepted" if node in step.accepted else "rejected" for node in range(1, tree.size)), "bonus"]
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
