"""Pictures of a tree: its nodes, the mask of its forward pass, and many shapes side by side."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from functools import cache
from math import ceil

import matplotlib.pyplot as plt
import numpy as np
from matplotlib.axes import Axes
from matplotlib.collections import LineCollection
from matplotlib.colors import ListedColormap, to_rgba
from matplotlib.figure import Figure
from matplotlib.font_manager import findfont, get_font

from lib.lab.theme import BLACK, PALE, ROLES, shown, styles_of
from lib.trees.tree import ROOT, Tree

FONTS = ["DejaVu Sans Mono", "DejaVu Sans"]  # they come with matplotlib and have the signs for white space
LONGEST = 12  # characters of a token that a box shows
UNKNOWN = "\ufffd"  # stands for a character that the fonts lack


def draw_tree(tree: Tree, *, labels: Sequence[str] | None = None, notes: Sequence[str] | None = None,
              accepted: Iterable[int] | None = None, bonus: str | None = None,
              weights: Sequence[float] | None = None, colour: str = ROLES["drafted"],
              prefix_length: int | None = None, numbered: bool = True, title: str = "",
              axis: Axes | None = None) -> Figure:
    """A tree with its root on top; with labels (the text of each node, the root included), with its root on the left.

    notes: a short text for each node, shown on the line that leads to it (the root's is not).
    accepted: nodes of an accepted path, root excluded, which are highlighted while all others are grey.
    bonus: the text of the token that the target adds after the accepted path.
    weights: float[m] in [0, 1], how strongly each node is coloured.
    prefix_length: if given, levels are marked with the position id of their nodes.
    numbered: nodes show their index if it is legible.
    """
    if labels is not None and len(labels) != tree.size:
        raise ValueError(f"{len(labels)} labels for {tree.size} nodes: give one for each, the root's first")
    drawn, labels = tree, labels and list(labels)
    if bonus is not None:  # the last child of the accepted path's end
        end = max(accepted or (), default=ROOT)  # parents come before children: the last node of a path is its largest
        last_rank = max((int(tree.rank[child]) for child in tree.children(end)), default=-1)
        drawn = Tree([*tree.parents, end], [*tree.rank, last_rank + 1])
        labels = labels and [*labels, bonus]
    across, depth = positions(drawn), drawn.depth.astype(float)
    points = np.column_stack((depth, -across) if labels else (across, -depth))
    if axis is None:
        axis = plt.subplots(figsize=_size(drawn, points, labels, title), layout="constrained")[1]
    colours, lit = _colours(tree, drawn, accepted, weights, colour)
    segments, bright = np.stack((points[drawn.parents[1:]], points[1:]), axis=1), lit[1:] & lit[drawn.parents[1:]]
    axis.add_collection(LineCollection(segments[~bright], colors="#B5B5B5", linewidths=0.9, zorder=1))
    axis.add_collection(LineCollection(segments[bright], colors=BLACK, linewidths=2.2, zorder=2))
    letters = np.where(colours[:, :3] @ (0.3, 0.59, 0.11) < 0.5, "white", BLACK)
    if labels:
        for node, (x, y) in enumerate(points):
            axis.text(x, y, labels[node], ha="center", va="center", fontsize=9, color=letters[node], zorder=4,
                      parse_math=False,  # tokens hold dollar signs
                      fontfamily=FONTS, weight="bold" if lit[node] else "normal",
                      bbox=dict(boxstyle="round,pad=0.35", facecolor=colours[node], edgecolor="white", linewidth=1.2))
    else:
        box, spans = axis.get_window_extent(), np.ptp(points, axis=0) + 1.2
        width = 0.62 * min(box.width / spans[0], box.height / spans[1]) * 72 / axis.figure.dpi
        width = float(np.clip(width, 2.0, 17.0))
        axis.scatter(*points.T, s=width**2, c=colours, edgecolors="white", linewidths=min(0.8, width / 10), zorder=3)
        for node, (x, y) in enumerate(points[:tree.size] if numbered and width > 10 else ()):
            axis.text(x, y, str(node), ha="center", va="center_baseline", fontsize=min(8.0, 0.52 * width),
                      color=letters[node], zorder=4)
    for (start, end), note in zip(segments, (notes or [""])[1:]):
        axis.text(*(0.45 * start + 0.55 * end), note, ha="center", va="center", fontsize=7, color="#444444", zorder=3,
                  bbox=dict(boxstyle="round,pad=0.1", facecolor="white", edgecolor="none"))
    _frame_tree(axis, drawn, points, prefix_length, across=bool(labels))
    axis.set_title(title)
    return axis.figure


def draw_mask(tree: Tree, *, prefix_length: int | None = None, node: int | None = None, title: str = "",
              axis: Axes | None = None) -> Figure:
    """The tree's mask, one row per node, filled where the node attends, and each node's position id.

    prefix_length: length of the committed prefix, drawn as one broad column to which every node attends, unless it is
    0. node: the one row to show in full colour.
    """
    if axis is None:
        axis = plt.subplots(figsize=(4.6, 4.2), layout="constrained")[1]
    size = tree.size
    prefix = max(3, tree.size // 7) if prefix_length else 0
    cells = np.zeros((size, prefix + size))
    cells[:, :prefix] = 3
    cells[:, prefix:] = tree.mask + np.eye(size)
    if node is not None:
        cells[np.arange(size) != node] *= -1  # the other rows in paler colours
    # From -3 to 3: prefix, self, ancestor in pale colours, nothing, then ancestor, self, prefix in full colours.
    colours = ListedColormap(["#EEEEEE", "#9A9A9A", "#CFE6F5", "#F7F7F7", ROLES["drafted"], BLACK, PALE])
    axis.imshow(cells, cmap=colours, vmin=-3.5, vmax=3.5, aspect="auto", interpolation="nearest")
    gaps = dict(color="white", linewidth=min(1.0, 24 / size))
    axis.hlines(np.arange(0.5, size - 1), -0.5, prefix + size - 0.5, **gaps)
    axis.vlines(np.arange(prefix - 0.5, prefix + size - 1), -0.5, size - 0.5, **gaps)
    axis.grid(False)
    axis.spines[:].set_visible(False)
    inches = axis.get_window_extent().height / axis.figure.dpi
    nodes = np.arange(0, size, max(1, ceil(0.17 * size / inches)))
    keys = [*prefix + nodes], [str(number) for number in nodes]
    if prefix:
        keys = [prefix / 2 - 0.5, *keys[0]], [f"prefix\n0..{prefix_length - 1}", *keys[1]]
    axis.set_xticks(*keys)
    axis.set_yticks(nodes, map(str, nodes))
    axis.tick_params(length=0, labelsize=8)
    axis.set(xlabel="key: node attended to", ylabel="query: node", title=title)
    ids = axis.secondary_yaxis("right")
    ids.set_yticks(nodes, (prefix_length or 0) + tree.depth[nodes])
    ids.tick_params(length=0, labelsize=8, colors="#666666")
    ids.set_ylabel("position id" if prefix_length is not None else "depth", color="#666666")
    ids.spines["right"].set_visible(False)
    return axis.figure


def shape_card(tree: Tree, *, prefix_length: int | None = None, node: int | None = None, title: str = "") -> Figure:
    """A tree beside its mask; `node` highlights the path to one node and that node's row."""
    wide = np.ptp(positions(tree)) + 1
    left, side = np.clip(0.33 * wide + 1, 5.8, 24), np.clip(0.17 * tree.size + 1.2, 4.6, 12.4)
    figure, axes = plt.subplots(1, 2, figsize=(left + side, max(side, 0.4 * tree.max_depth + 1)),
                                width_ratios=(left, side), layout="constrained")
    draw_tree(tree, accepted=None if node is None else tree.path(node)[1:], prefix_length=prefix_length, axis=axes[0],
              title=title or describe(tree))
    row = "which nodes attend to which" if node is None else f"node {node} attends to its ancestors"
    draw_mask(tree, prefix_length=prefix_length, node=node, axis=axes[1], title=f"Mask: {row}")
    return figure


def gallery(trees: Mapping[str, Tree], *, weights: Mapping[str, Sequence[float]] | None = None,
            notes: Mapping[str, str] | None = None, columns: int = 4) -> Figure:
    """Shapes side by side, each filling its panel, in its strategy's colour.

    weights: by name float[m] in [0, 1], how strongly each node is coloured. notes: by name a line below the title.
    """
    columns = min(columns, len(trees))
    rows = -(-len(trees) // columns)
    size = 2.75 * columns, 2.4 * rows
    figure, axes = plt.subplots(rows, columns, figsize=size, squeeze=False, layout="constrained")
    for axis in axes.flat[len(trees):]:
        axis.set_visible(False)
    styles = styles_of(trees)
    for axis, (name, tree) in zip(axes.flat, trees.items()):
        draw_tree(tree, colour=styles[name].colour, weights=(weights or {}).get(name), axis=axis, numbered=False)
        axis.set_ylim(-max(tree.max_depth, 3) - 0.5, 0.5)
        axis.yaxis.set_visible(False)
        axis.text(0, 1.0, (notes or {}).get(name, ""), transform=axis.transAxes, fontsize=8.5, color="#444444")
        axis.set_title(shown(name), color=styles[name].colour, pad=16 if notes else 6)
    return figure


def describe(tree: Tree) -> str:
    """A tree's form in words: nodes, depth, leaves."""
    nodes, leaves = tree.budget, len(tree.leaves)
    return f"{nodes} node{'s' * (nodes != 1)}, depth {tree.max_depth}, {leaves} {'leaf' if leaves == 1 else 'leaves'}"


def visible(text: str, longest: int = LONGEST) -> str:
    """A token as a label: signs for white space, runs of it counted, and no longer than so many characters."""
    text = text.replace("\r\n", "\n").replace("\n", "↵").replace("\t", "⇥").replace(" ", "·")
    text = re.sub(r"(·|↵|⇥)\1{3,}", lambda run: f"{run[1]}×{len(run[0])}", text)
    text = "".join(sign if sign.isprintable() and ord(sign) in _drawable() else UNKNOWN for sign in text)
    return text if len(text) <= longest else text[: longest - 1] + "…"


@cache
def _drawable() -> frozenset[int]:
    """The characters that the fonts have; matplotlib warns of any other."""
    return frozenset().union(*(get_font(findfont(name)).get_charmap() for name in FONTS))


def positions(tree: Tree) -> np.ndarray:
    """float[m]: each node's horizontal position in its level, the leftmost node at 0.

    Nodes of one level are at least 1 apart, siblings are ordered by rank, and a parent is midway between its first and
    last child (Reingold and Tilford 1981, with whole contours instead of threads).
    """
    shift = np.zeros(tree.size)  # of a node relative to its parent
    left, right = {}, {}  # outline of a subtree by level below its root, relative to that root
    for node in reversed(range(tree.size)):
        places, outline = [], ([], [])  # of the children's subtrees, each as far left as those before it allow
        for child in tree.children(node):
            child_left, child_right = left.pop(child), right.pop(child)
            common = min(len(child_left), len(outline[1]))
            place = max((outline[1][level] - child_left[level] + 1 for level in range(common)), default=0.0)
            places.append(place)
            outline = (outline[0] + [edge + place for edge in child_left[len(outline[0]):]],
                       [edge + place for edge in child_right] + outline[1][len(child_right):])
        middle = (places[0] + places[-1]) / 2 if places else 0.0
        for child, place in zip(tree.children(node), places):
            shift[child] = place - middle
        left[node], right[node] = ([0.0, *(edge - middle for edge in side)] for side in outline)
    across = np.zeros(tree.size)
    for node in range(1, tree.size):
        across[node] = across[tree.parents[node]] + shift[node]
    return across - across.min()


def _size(drawn: Tree, points: np.ndarray, labels: Sequence[str] | None, title: str) -> tuple[float, float]:
    """The inches of a figure that holds the tree alone."""
    levels = drawn.max_depth + 1
    if labels:
        return (0.1 * max(map(len, labels)) + 0.75) * levels + 0.4, 0.3 * (np.ptp(points[:, 1]) + 1) + 0.8
    wide, tall = np.clip(0.42 * (np.ptp(points[:, 0]) + 1) + 1, 3, 11), np.clip(0.5 * levels + 0.8, 2, 8)
    return max(wide, 0.1 * len(title) + 0.5), tall  # a wider title would leave the axes no room


def _colours(tree: Tree, drawn: Tree, accepted: Iterable[int] | None, weights: Sequence[float] | None,
             colour: str) -> tuple[np.ndarray, np.ndarray]:
    """A colour for each drawn node, and which nodes are highlighted: root, accepted path and bonus token."""
    lit = np.zeros(drawn.size, dtype=bool)
    colours = np.array([to_rgba(colour)] * drawn.size)
    if accepted is not None:
        colours[1:tree.size] = to_rgba(ROLES["rejected"])
        path = list(accepted)
        colours[path] = to_rgba(ROLES["accepted"])
        lit[[ROOT, *path]] = True
    if weights is not None:
        strength = np.clip(np.asarray(weights, dtype=float), 0, 1)[:, None]
        colours[:tree.size, :3] = strength * colours[:tree.size, :3] + (1 - strength) * 0.88
    colours[ROOT] = to_rgba(ROLES["root"])
    if drawn.size > tree.size:
        colours[-1], lit[-1] = to_rgba(ROLES["bonus"]), True
    return colours, lit


def _frame_tree(axis: Axes, tree: Tree, points: np.ndarray, prefix_length: int | None, across: bool) -> None:
    """Limits around the nodes, and an axis that names the levels."""
    low, high = points.min(axis=0), points.max(axis=0)
    least = (0.6, 0.5) if across else (1.2, 0.6)  # a chain must not fill the width with one node
    axis.set_xlim(low[0] - least[0], high[0] + least[0])
    axis.set_ylim(low[1] - least[1], high[1] + least[1])
    axis.grid(False)
    axis.spines[:].set_visible(False)
    levels = np.arange(tree.max_depth + 1)
    levels = levels[:: max(1, -(-len(levels) // 12))]
    level_axis, other = (axis.xaxis, axis.yaxis) if across else (axis.yaxis, axis.xaxis)
    other.set_visible(False)
    level_axis.set_ticks(levels if across else -levels, [str(level + (prefix_length or 0)) for level in levels])
    level_axis.set_tick_params(length=0, colors="#666666")
    name = "depth" if prefix_length is None else f"position id = {prefix_length} + depth"
    level_axis.set_label_text(name, color="#666666", fontsize=9)
