"""Drawn trees: SVG elements for screens, which explorers and the report share, and figures of many shapes.

In an SVG each node is a group with the class "node" and its number in `data-node`, for scripts.
"""

import re
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from html import escape

import matplotlib.pyplot as plt
import numpy as np
from matplotlib.axes import Axes
from matplotlib.collections import LineCollection
from matplotlib.colors import to_hex, to_rgb
from matplotlib.figure import Figure

from lib.lab.theme import BLACK, ROLES, shown, styles_of
from lib.trees.tree import ROOT, Tree

ACROSS, DOWN, RADIUS = 42, 50, 16  # of a tree with its root on top: between neighbours, between levels, of a node
CHARACTER, LINE = 7.8, 30  # of a tree with its root on the left: the width of a letter, the height of a row
LONGEST, UNKNOWN = 12, "\ufffd"  # characters of a token that a label shows; the sign for one that cannot be printed
PALEST = 0.88  # the grey of a node of a figure that is never accepted
STYLE = (".tree .note{font-size:10px;fill:#555}.tree rect{stroke:#fff}"
         ".tree line{stroke:#b5b5b5;vector-effect:non-scaling-stroke}"
         f".tree .lit{{stroke:{BLACK};stroke-width:2.4}}")


@dataclass(frozen=True)
class Node:
    """A node of a drawn tree: its colour and its ring's as "#rrggbb", its title (shown where the pointer rests), a note
    on the line from its parent, and its key, which names it in all frames of a page.
    """

    label: str
    colour: str
    title: str = ""
    note: str = ""
    key: str = ""
    ring: str = ""


def tree_svg(tree: Tree, nodes: Sequence[Node], *, lit: Collection[int] = (), sideways: bool = False,
             scale: float = 1.0) -> str:
    """A tree with its root on top, or `sideways` on the left, where labels may be long; lines between `lit` nodes are
    strong.
    """
    across, depth = positions(tree), tree.depth
    halves, tall = np.full(tree.size, RADIUS), RADIUS  # half of each node's width, and of its height
    x, y = ACROSS * (across + 0.6), DOWN * (depth + 0.45)
    width, height = x.max() + 0.6 * ACROSS, y.max() + 0.45 * DOWN
    if sideways:
        halves, tall = np.array([CHARACTER * len(node.label) / 2 + 6 for node in nodes]), 11
        columns = np.array([halves[depth == level].max() + 1 for level in range(tree.max_depth + 1)])
        starts = 8 + np.cumsum([0, *(2 * columns + 58)])
        x, y = (starts[:-1] + columns)[depth], LINE * (across + 0.8)
        width, height = starts[-1] - 50, y.max() + 0.8 * LINE
    x, y, halves = (np.rint(values).astype(int) for values in (x, y, halves))
    lines, boxes = [], []
    for index, (node, parent, left, top) in enumerate(zip(nodes, tree.parents, x - halves, y - tall)):
        if index != ROOT:
            strong = ' class="lit"' if index in lit and parent in lit else ""
            lines.append(f'<line x1="{x[parent]}" y1="{y[parent]}" x2="{x[index]}" y2="{y[index]}"{strong}/>')
        if node.note:
            lines.append(f'<text class="note" x="{(x[parent] + x[index]) // 2}" '
                         f'y="{0.35 * y[parent] + 0.65 * y[index] - 3:.0f}">{escape(node.note)}</text>')
        key = f' data-key="{escape(node.key)}"' if node.key else ""
        ring = f' style="stroke:{node.ring};stroke-width:3"' if node.ring else ""
        boxes.append(
            f'<g class="node" data-node="{index}" data-parent="{parent}"{key}><title>{escape(node.title)}</title>'
            f'<rect x="{left}" y="{top}" width="{2 * halves[index]}" height="{2 * tall}" '
            f'rx="{5 if sideways else RADIUS}"{ring} fill="{node.colour}"/>'
            f'<text x="{x[index]}" y="{y[index] + 4}" fill="{letters_on(node.colour)}">{escape(node.label)}</text></g>')
    return (f'<svg class="tree" xmlns="http://www.w3.org/2000/svg" width="{scale * width:.0f}" '
            f'height="{scale * height:.0f}" viewBox="0 0 {width:.0f} {height:.0f}" role="img" text-anchor="middle" '
            f'font-family="DejaVu Sans Mono,Menlo,monospace" font-size="{13 if sideways else 11}">'
            f'<style>{STYLE}</style>{"".join(lines + boxes)}</svg>')


def round_svg(parents: Sequence[int], tokens: Sequence[str], roles: Sequence[str],
              chances: Mapping[str, Sequence[float]]) -> str:
    """A round's tree with the bonus token as its last node.

    roles: names of `theme.ROLES`. chances: by whose they are ("drafter", "target") the probability of each node after
    its parent, or NaN; on the line to the node.
    """
    nodes = []
    for index, (token, role) in enumerate(zip(tokens, roles)):
        percents = {who: f"{row[index]:.0%}" if row[index] >= 0.005 else "<1%"
                    for who, row in chances.items() if index and not np.isnan(row[index])}
        title = ", ".join([role, *(f"{percent} by the {who}" for who, percent in percents.items())])
        nodes.append(Node(token, ROLES[role], f"node {index}, {token}: {title}", "/".join(percents.values())))
    accepted = {index for index, role in enumerate(roles) if role != "rejected"}
    return tree_svg(Tree(parents), nodes, lit=accepted, sideways=True)


def accepted_svg(shares: Mapping[str, float], family: str, scale: float = 1.0) -> str:
    """A tree whose nodes are shaded in their family's colour by the share of rounds that accept them.

    shares: by the node's path of ranks, such as "0.0.1".
    """
    tree = Tree.from_choices(tuple(map(int, path.split("."))) for path in shares)
    nodes, colour = [Node("", BLACK, "root", key=f"{family}/")], styles_of([family])[family].colour
    for path in (".".join(map(str, choice)) for choice in tree.choices()):
        title = f"ranks {path}: accepted in {shares[path]:.1%} of rounds"
        nodes.append(Node("", shaded(shares[path], colour), title, key=f"{family}/{path}"))
    return tree_svg(tree, nodes, scale=scale)


def frames(parts: Mapping[str, str], *, label: str, hint: str, first: int = 0) -> str:
    """Parts of a page, by name, below one another; where `lib/lab/page.js` runs, one at a time by a slider.

    label: of the slider. hint: shown until the pointer rests on a node. first: index of the part shown first.
    """
    inside = "".join(f'<div class="frame" data-name="{escape(name)}"><p>{escape(name)}</p>{part}</div>'
                     for name, part in parts.items())
    return (f'<div class="frames" style="max-height:32rem;overflow:auto" data-label="{escape(label)}" '
            f'data-hint="{escape(hint)}" data-first="{first}">{inside}</div>')


def mask_svg(tree: Tree, prefix: int = 0, node: int | None = None) -> str:
    """The mask of a tree's forward pass, a row for each node, with its position id after `prefix` tokens; without a
    `node` all rows have their full colour, else its row alone.
    """
    cell = max(3, min(16, 420 // tree.size))
    rows = []
    for row in range(tree.size):
        path = "".join(f"M{cell * key} {cell * row}h{cell - 1}v{cell - 1}h{1 - cell}z"
                       for key in np.flatnonzero(tree.mask[row]) if key != row)
        position = f'<text x="{cell * tree.size + 6}" y="{cell * (row + 0.8):.0f}">{prefix + tree.depth[row]}</text>'
        pale = "" if node in (None, row) else ' opacity="0.3"'
        rows.append(f'<g data-row="{row}"{pale}><path d="{path}" fill="{ROLES["drafted"]}"/><rect x="{cell * row}" y="'
                    f'{cell * row}" width="{cell - 1}" height="{cell - 1}" fill="{BLACK}"/>'
                    f'{position if cell > 8 or row % 4 == 0 else ""}</g>')
    side = cell * tree.size
    return (f'<svg class="mask" xmlns="http://www.w3.org/2000/svg" width="{side + 44}" height="{side}" role="img" '
            f'font-family="DejaVu Sans Mono,Menlo,monospace" font-size="{min(10, cell + 2)}"><title>the mask: a row '
            f'for each node, filled where it attends; right, its position id</title><rect width="{side}" '
            f'height="{side}" fill="#f4f4f4"/>{"".join(rows)}</svg>')


def card(tree: Tree, prefix: int = 0, node: int | None = None) -> str:
    """A tree with its nodes' numbers beside its mask; of `node`, if given, the path and the row are marked."""
    lit = set() if node is None else set(tree.path(node))
    roles = ["root", *("accepted" if index in lit else "drafted" for index in range(1, tree.size))]
    nodes = [Node(str(index), ROLES[role]) for index, role in enumerate(roles)]
    return f'<div class="frame">{tree_svg(tree, nodes, lit=lit)}{mask_svg(tree, prefix, node)}</div>'


def shaded(share: float, colour: str = ROLES["accepted"]) -> str:
    """A colour by a share in [0, 1], white for 0, by the square root so that rare nodes stay visible."""
    strength = 0.08 + 0.92 * float(np.clip(share, 0, 1)) ** 0.5
    return to_hex(strength * np.array(to_rgb(colour)) + 1 - strength)


def letters_on(colour: str) -> str:
    """The colour of letters that can be read on a colour."""
    return "#fff" if np.dot(to_rgb(colour), (0.3, 0.59, 0.11)) < 0.5 else BLACK


def visible(text: str, longest: int = LONGEST) -> str:
    """A token as a label: signs for white space, runs of it counted, and no longer than so many characters."""
    text = text.replace("\r\n", "\n").replace("\n", "↵").replace("\t", "⇥").replace(" ", "·")
    text = re.sub(r"(·|↵|⇥)\1{3,}", lambda run: f"{run[1]}×{len(run[0])}", text)
    text = "".join(sign if sign.isprintable() else UNKNOWN for sign in text)
    return text if len(text) <= longest else text[: longest - 1] + "…"


def positions(tree: Tree) -> np.ndarray:
    """float[m]: each node's horizontal position in its level, the leftmost node at 0.

    Nodes of one level are at least 1 apart, siblings are ordered by rank, and a parent is midway between its first and
    last child (Reingold and Tilford 1981, over whole levels instead of threads).
    """
    across, depth = np.zeros(tree.size), tree.depth
    for node in reversed(range(tree.size)):
        children, done = tree.children(node), np.zeros(tree.size, dtype=bool)
        for child in children:  # its subtree as far left as those before it allow
            subtree = tree.mask[:, child]
            common = [depth == level for level in np.intersect1d(depth[done], depth[subtree])]
            across[subtree] += max((across[done & level].max() + 1 - across[subtree & level].min() for level in common),
                                   default=0.0)
            done |= subtree
        if children:
            across[node] = (across[children[0]] + across[children[-1]]) / 2
    return across - across.min()


def gallery(trees: Mapping[str, Tree], weights: Mapping[str, Sequence[float]] | None = None) -> Figure:
    """Shapes side by side, each filling its panel, in its strategy's colour, with its size in words.

    weights: by name float[m] in [0, 1], how strongly each node is coloured.
    """
    columns, rows = min(4, len(trees)), -(-len(trees) // 4)
    figure, axes = plt.subplots(rows, columns, figsize=(2.75 * columns, 2.4 * rows), squeeze=False,
                                layout="constrained")
    for axis in axes.flat[len(trees):]:
        axis.set_visible(False)
    styles = styles_of(trees)
    for axis, (name, tree) in zip(axes.flat, trees.items()):
        _draw(tree, axis, styles[name].colour, np.ones(tree.size) if weights is None else weights[name])
        axis.text(0, 1.0, describe(tree), transform=axis.transAxes, fontsize=8.5, color="#444444")
        axis.set_title(shown(name), color=styles[name].colour, pad=16)
    return figure


def _draw(tree: Tree, axis: Axes, colour: str, weights: Sequence[float]) -> None:
    """A tree with its root on top."""
    points = np.column_stack((positions(tree), -tree.depth.astype(float)))
    low, high = points.min(axis=0), points.max(axis=0)
    axis.set_xlim(low[0] - 1.2, high[0] + 1.2)  # a chain must not fill the width with one node
    axis.set_ylim(-max(tree.max_depth, 3) - 0.5, 0.5)
    axis.set_axis_off()
    axis.add_collection(LineCollection(np.stack((points[tree.parents[1:]], points[1:]), axis=1), colors="#B5B5B5",
                                       linewidths=0.9, zorder=1))
    strength = np.clip(np.asarray(weights, dtype=float), 0, 1)[:, None]
    colours = strength * np.array(to_rgb(colour)) + (1 - strength) * PALEST
    colours[ROOT] = to_rgb(ROLES["root"])
    box, spans = axis.get_window_extent(), high - low + 1.2
    width = float(np.clip(0.62 * min(box.width / spans[0], box.height / spans[1]) * 72 / axis.figure.dpi, 2.0, 17.0))
    axis.scatter(*points.T, s=width**2, c=colours, edgecolors="white", linewidths=min(0.8, width / 10), zorder=3)


def describe(tree: Tree) -> str:
    """A tree's size in words."""
    return f"budget {tree.budget}, depth {tree.max_depth}, leaves {len(tree.leaves)}"
