"""A tree as an SVG element for screens: explorers and the report share it. Each node is a group with the class "node"
and its number in `data-node`, so that a few lines of script can answer clicks, keys and the pointer.
"""

from collections.abc import Collection, Mapping, Sequence
from html import escape

import numpy as np

from lib.lab.theme import BLACK, ROLES
from lib.trees.drawing import positions
from lib.trees.tree import ROOT, Tree

ACROSS, DOWN, RADIUS = 42, 50, 16  # of a tree with its root on top: between neighbours, between levels, of a node
CHARACTER, LINE = 7.8, 30  # of a tree with its root on the left: the width of a letter, the height of a row
WHITE = (255, 255, 255)


def tree_svg(tree: Tree, labels: Sequence[str], *, colours: Sequence[str] = (), lit: Collection[int] = (),
             titles: Sequence[str] = (), notes: Sequence[str] = (), marks: Mapping[int, str] = {},
             sideways: bool = False) -> str:
    """A tree with a label in each node; with its root on top, or `sideways` on the left, where labels may be long.

    colours: of each node, as "#rrggbb"; by default that of draft tokens, and black for the root. lit: nodes whose lines
    from their parent are strong. titles: by node what is told where the pointer rests. notes: by node a text on the
    line that leads to it. marks: colour of a ring around some nodes.
    """
    colours = list(colours) or [ROLES["root"], *[ROLES["drafted"]] * tree.budget]
    across, depth = positions(tree), tree.depth
    if sideways:
        columns = [max((len(labels[node]) for node in np.flatnonzero(depth == level)), default=1)
                   for level in range(tree.max_depth + 1)]
        rooms = [CHARACTER * letters + 14 for letters in columns]
        lefts = np.cumsum([8, *(room + 58 for room in rooms[:-1])])
        x = [float(lefts[level] + rooms[level] / 2) for level in depth]
        y = (LINE * (across + 0.8)).tolist()
        size = float(lefts[-1] + rooms[-1] + 8), float(max(y) + 0.8 * LINE)
    else:
        x, y = (ACROSS * (across + 0.6)).tolist(), (DOWN * (depth + 0.45)).tolist()
        size = max(x) + 0.6 * ACROSS, max(y) + 0.45 * DOWN
    parts = []
    for node in range(1, tree.size):
        parent = int(tree.parents[node])
        colour, width = (BLACK, 2.4) if node in lit and (parent in lit or parent == ROOT) else ("#b5b5b5", 1)
        parts.append(f'<line x1="{x[parent]:.0f}" y1="{y[parent]:.0f}" x2="{x[node]:.0f}" y2="{y[node]:.0f}" '
                     f'stroke="{colour}" stroke-width="{width}"/>')
        if notes and notes[node]:
            at = 0.5 * x[parent] + 0.5 * x[node], 0.35 * y[parent] + 0.65 * y[node] - 3
            parts.append(f'<text class="note" x="{at[0]:.0f}" y="{at[1]:.0f}">{escape(notes[node])}</text>')
    for node in range(tree.size):
        half = (CHARACTER * len(labels[node]) + 12) / 2 if sideways else RADIUS
        tall = 11 if sideways else RADIUS
        ring = f' stroke="{marks[node]}" stroke-width="3"' if node in marks else ' stroke="#fff"'
        title = f"<title>{escape(titles[node])}</title>" if titles else ""
        parts.append(
            f'<g class="node" data-node="{node}" data-parent="{tree.parents[node]}">{title}'
            f'<rect x="{x[node] - half:.0f}" y="{y[node] - tall:.0f}" width="{2 * half:.0f}" height="{2 * tall}" '
            f'rx="{5 if sideways else RADIUS}" fill="{colours[node]}"{ring}/><text x="{x[node]:.0f}" '
            f'y="{y[node] + 4:.0f}" fill="{on(colours[node])}">{escape(labels[node])}</text></g>')
    return (f'<svg class="tree" xmlns="http://www.w3.org/2000/svg" width="{size[0]:.0f}" height="{size[1]:.0f}" '
            f'viewBox="0 0 {size[0]:.0f} {size[1]:.0f}" role="img" font-family="DejaVu Sans Mono,Menlo,monospace" '
            f'font-size="{13 if sideways else 11}" text-anchor="middle">'
            f'<style>.tree .note{{font-size:10px;fill:#555}}</style>{"".join(parts)}</svg>')


def mask_svg(tree: Tree, prefix: int = 0) -> str:
    """The mask of a tree's forward pass: a row for each node, filled where it attends, and its position id."""
    cell = max(3, min(16, 420 // tree.size))
    rows = []
    for node in range(tree.size):
        seen = "".join(f'<rect x="{cell * key}" y="{cell * node}" width="{cell - 1}" height="{cell - 1}" fill="'
                       f'{BLACK if key == node else ROLES["drafted"]}"/>' for key in np.flatnonzero(tree.mask[node]))
        told = f'<text x="{cell * tree.size + 6}" y="{cell * (node + 0.8):.0f}">{prefix + tree.depth[node]}</text>'
        rows.append(f'<g data-row="{node}">{seen}{told if cell > 8 or node % 4 == 0 else ""}</g>')
    side = cell * tree.size
    return (f'<svg class="mask" xmlns="http://www.w3.org/2000/svg" width="{side + 44}" height="{side}" role="img" '
            f'font-family="DejaVu Sans Mono,Menlo,monospace" font-size="{min(10, cell + 2)}"><title>the mask: a row '
            f'for each node, filled where it attends; right, its position id</title><rect width="{side}" '
            f'height="{side}" fill="#f4f4f4"/>{"".join(rows)}</svg>')


def shaded(share: float, colour: str = ROLES["accepted"]) -> str:
    """A colour by a share in [0, 1], white for 0, by the square root so that rare nodes stay visible."""
    strength = 0.08 + 0.92 * float(np.clip(share, 0, 1)) ** 0.5
    full = (int(colour[at : at + 2], 16) for at in (1, 3, 5))
    return "#" + "".join(f"{round(strength * one + (1 - strength) * white):02x}" for one, white in zip(full, WHITE))


def on(colour: str) -> str:
    """The colour of letters that can be read on a colour."""
    red, green, blue = (int(colour[at : at + 2], 16) for at in (1, 3, 5))
    return "#fff" if 0.3 * red + 0.59 * green + 0.11 * blue < 128 else BLACK
