"""Pictures of a tree: its nodes, the mask of its forward pass, and many shapes side by side."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

import matplotlib.pyplot as plt
import numpy as np
from matplotlib.axes import Axes
from matplotlib.collections import LineCollection
from matplotlib.colors import ListedColormap, to_rgba
from matplotlib.figure import Figure

from lib.lab.theme import BLACK, PALE, ROLES, shown, styles_of
from lib.trees.tree import ROOT, Tree

MOST_LABELLED = 40  # nodes whose numbers are legible in a tree


def draw_tree(tree: Tree, *, labels: Sequence[str] | None = None, accepted: Iterable[int] | None = None,
              bonus: str | None = None, weights: Sequence[float] | None = None, colour: str = ROLES["drafted"],
              prefix_length: int | None = None, numbered: bool = True, title: str = "",
              axis: Axes | None = None) -> Figure:
    """A tree with its root on top; with labels (the text of each node, the root included), with its root on the left.

    accepted: nodes of an accepted path, root excluded, which are highlighted while all others are grey.
    bonus: the text of the token that the target adds after the accepted path.
    weights: float[m] in [0, 1], how strongly each node is coloured.
    prefix_length: if given, levels are marked with the position id of their nodes.
    numbered: nodes show their index if it is legible.
    """
    if axis is None:
        wide, deep = np.ptp(positions(tree)) + 1, tree.max_depth + 1
        size = np.clip(0.42 * wide + 1, 3, 11), np.clip(0.5 * deep + 0.8, 2, 8)
        size = max(size[0], 0.1 * len(title) + 0.5), size[1]  # a wider title would leave the axes no room
        axis = plt.subplots(figsize=size, layout="constrained")[1]
    drawn, labels = _with_bonus(tree, labels, accepted, bonus)
    across, depth = positions(drawn), drawn.depth.astype(float)
    points = np.column_stack((depth, -across) if labels else (across, -depth))
    colours, lit = _node_colours(tree, drawn, accepted, weights, colour)
    _draw_edges(axis, drawn, points, lit)
    if labels:
        _draw_boxes(axis, points, labels, colours, lit)
    else:
        _draw_discs(axis, tree, points, colours, numbered)
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
    axis.imshow(cells, cmap=_mask_colours(), vmin=-3.5, vmax=3.5, aspect="auto", interpolation="nearest")
    gaps = dict(color="white", linewidth=min(1.0, 24 / size))
    axis.hlines(np.arange(0.5, size - 1), -0.5, prefix + size - 0.5, **gaps)
    axis.vlines(np.arange(prefix - 0.5, prefix + size - 1), -0.5, size - 0.5, **gaps)
    _label_mask(axis, tree, prefix_length, prefix)
    axis.set_title(title)
    return axis.figure


def shape_card(tree: Tree, *, prefix_length: int, node: int | None = None, title: str = "") -> Figure:
    """A tree beside its mask; `node` highlights the path to one node and that node's row."""
    figure, (left, right) = plt.subplots(1, 2, figsize=(10.5, 4.6), width_ratios=(1.25, 1), layout="constrained")
    path = None if node is None else tree.path(node)[1:]
    draw_tree(tree, accepted=path, prefix_length=prefix_length, axis=left, title=title or describe(tree))
    row = "which nodes attend to which" if node is None else f"node {node} attends to its ancestors"
    draw_mask(tree, prefix_length=prefix_length, node=node, axis=right, title=f"Mask: {row}")
    return figure


def describe(tree: Tree) -> str:
    """A tree's form in words: nodes, depth, leaves."""
    nodes, leaves = tree.budget, len(tree.leaves)
    return f"{nodes} node{'s' * (nodes != 1)}, depth {tree.max_depth}, {leaves} {'leaf' if leaves == 1 else 'leaves'}"


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


def _with_bonus(tree, labels, accepted, bonus):
    """The tree to draw, in which the bonus token, if there is one, is the last child of the accepted path's end."""
    if labels is not None and len(labels) != tree.size:
        raise ValueError(f"{len(labels)} labels for {tree.size} nodes: give one for each, the root's first")
    if bonus is None:
        return tree, labels
    end = max(accepted or (), default=ROOT)  # parents come before children: the last node of a path is its largest
    last_rank = max((int(tree.rank[child]) for child in tree.children(end)), default=-1)
    drawn = Tree([*tree.parents, end], [*tree.rank, last_rank + 1])
    return drawn, [*labels, bonus] if labels else None


def _node_colours(tree, drawn, accepted, weights, colour):
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
        faint = 0.88 * np.ones(3)
        colours[:tree.size, :3] = strength * colours[:tree.size, :3] + (1 - strength) * faint
    colours[ROOT] = to_rgba(ROLES["root"])
    if drawn.size > tree.size:
        colours[-1], lit[-1] = to_rgba(ROLES["bonus"]), True
    return colours, lit


def _draw_edges(axis, tree, points, lit):
    segments = np.stack((points[tree.parents[1:]], points[1:]), axis=1)
    bright = lit[1:] & lit[tree.parents[1:]]
    axis.add_collection(LineCollection(segments[~bright], colors="#B5B5B5", linewidths=0.9, zorder=1))
    axis.add_collection(LineCollection(segments[bright], colors=BLACK, linewidths=2.2, zorder=2))


def _draw_discs(axis, tree, points, colours, numbered):
    box = axis.get_window_extent()
    spans = np.ptp(points, axis=0) + 1.2
    apart = min(box.width / spans[0], box.height / spans[1]) * 72 / axis.figure.dpi
    width = float(np.clip(0.62 * apart, 2.0, 17.0))
    axis.scatter(*points.T, s=width**2, c=colours, edgecolors="white", linewidths=min(0.8, width / 10), zorder=3)
    if numbered and width > 10 and len(points) <= MOST_LABELLED:
        for node, (x, y) in enumerate(points[:tree.size]):
            dark = colours[node, :3] @ (0.3, 0.59, 0.11) < 0.5
            axis.text(x, y, str(node), ha="center", va="center_baseline", fontsize=min(8.0, 0.52 * width),
                      color="white" if dark else BLACK, zorder=4)


def _draw_boxes(axis, points, labels, colours, lit):
    for (x, y), label, colour, bright in zip(points, labels, colours, lit):
        dark = colour[:3] @ (0.3, 0.59, 0.11) < 0.5
        axis.text(x, y, label, ha="center", va="center", fontsize=9, color="white" if dark else BLACK, zorder=4,
                  parse_math=False,  # tokens hold dollar signs
                  weight="bold" if bright else "normal",
                  bbox=dict(boxstyle="round,pad=0.35", facecolor=colour, edgecolor="white", linewidth=1.2))


def _frame_tree(axis, tree, points, prefix_length, across):
    low, high = points.min(axis=0), points.max(axis=0)
    least = (0.6, 0.5) if across else (1.2, 0.6)  # a chain must not fill the width with one node
    axis.set_xlim(low[0] - least[0], high[0] + least[0])
    axis.set_ylim(low[1] - least[1], high[1] + least[1])
    axis.grid(False)
    levels = np.arange(tree.max_depth + 1)
    step = max(1, -(-len(levels) // 12))
    level_axis, other = (axis.xaxis, axis.yaxis) if across else (axis.yaxis, axis.xaxis)
    other.set_visible(False)
    level_axis.set_ticks((levels if across else -levels)[::step],
                         [str(level + (prefix_length or 0)) for level in levels[::step]])
    level_axis.set_tick_params(length=0, colors="#666666")
    for spine in axis.spines.values():
        spine.set_visible(False)
    name = "depth" if prefix_length is None else f"position id = {prefix_length} + depth"
    level_axis.set_label_text(name, color="#666666", fontsize=9)


def _label_mask(axis, tree, prefix_length, prefix):
    axis.grid(False)
    for spine in axis.spines.values():
        spine.set_visible(False)
    step = max(1, -(-tree.size // 20))
    nodes = np.arange(0, tree.size, step)
    keys = [*prefix + nodes], [str(node) for node in nodes]
    if prefix:
        keys = [prefix / 2 - 0.5, *keys[0]], [f"prefix\n0..{prefix_length - 1}", *keys[1]]
    axis.set_xticks(*keys)
    axis.set_yticks(nodes, nodes)
    axis.tick_params(length=0, labelsize=8)
    axis.set_xlabel("key: node attended to")
    axis.set_ylabel("query: node")
    ids = axis.secondary_yaxis("right")
    ids.set_yticks(nodes, (prefix_length or 0) + tree.depth[nodes])
    ids.tick_params(length=0, labelsize=8, colors="#666666")
    ids.set_ylabel("position id" if prefix_length is not None else "depth", color="#666666")
    ids.spines["right"].set_visible(False)


def _mask_colours() -> ListedColormap:
    """From -3 to 3: prefix, self, ancestor in pale colours, nothing, then ancestor, self, prefix in full colours."""
    return ListedColormap(["#EEEEEE", "#9A9A9A", "#CFE6F5", "#F7F7F7", ROLES["drafted"], BLACK, PALE])


def positions(tree: Tree) -> np.ndarray:
    """float[m]: each node's horizontal position in its level, the leftmost node at 0.

    Nodes of one level are at least 1 apart, siblings are ordered by rank, and a parent is midway between its first and
    last child (Reingold and Tilford 1981, with whole contours instead of threads).
    """
    shift = np.zeros(tree.size)  # of a node relative to its parent
    left, right = {}, {}  # outline of a subtree by level below its root, relative to that root
    for node in reversed(range(tree.size)):
        left[node], right[node] = [0.0], [0.0]
        children = tree.children(node)
        if children:
            places, outline = _side_by_side(children, left, right)
            middle = (places[0] + places[-1]) / 2
            for child, place in zip(children, places):
                shift[child] = place - middle
            left[node] += [edge - middle for edge in outline[0]]
            right[node] += [edge - middle for edge in outline[1]]
    across = np.zeros(tree.size)
    for node in range(1, tree.size):
        across[node] = across[tree.parents[node]] + shift[node]
    return across - across.min()


def _side_by_side(children, left, right):
    """Positions of sibling subtrees, each as far left as the ones before it allow, and the outline of all of them."""
    places, outline = [], ([], [])
    for child in children:
        own_left, own_right = left.pop(child), right.pop(child)
        common = min(len(own_left), len(outline[1]))
        place = max((outline[1][level] - own_left[level] + 1 for level in range(common)), default=0.0)
        places.append(place)
        outline = (outline[0] + [edge + place for edge in own_left[len(outline[0]):]],
                   [edge + place for edge in own_right] + outline[1][len(own_right):])
    return places, outline
