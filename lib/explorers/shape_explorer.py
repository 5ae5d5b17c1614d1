"""The shape explorer: one or two shapes by name, with their trees, masks, position ids and expected acceptance."""

from collections.abc import Mapping, Sequence
from html import escape

import ipywidgets

from lib.lab import theme
from lib.lab.theme import BLACK, PALE, ROLES
from lib.trees import drawing, shapes
from lib.trees.tree import ROOT, Tree

NONE = "none"
MOST_PREFIX = 1 << 20
ACROSS, DOWN, RADIUS = 25, 40, 11  # pixels: between nodes, between levels, of a node
CELL = 12  # pixels of a cell of the mask
SELF, ANCESTOR, PALE_SELF, PALE_ANCESTOR = BLACK, ROLES["drafted"], "#9A9A9A", "#CFE6F5"


class ShapeExplorer:
    """Controls for two shapes, the budget, the decoding, the prefix and one node, above the shapes side by side.

    acceptance: by decoding ("greedy", "sampled") float[R], from which sparse and optimal trees are grown and lengths
    are expected. A shape is a family, to which the budget applies, or a name with its own, such as "kary:2@14"; the
    second one may be "none". The node is a number or "none". Show `view`; the controls are `first`, `second`, `budget`,
    `decoding`, `prefix` and `node`, the result `shown`; errors appear in `message`, and the last picture stays.
    """

    def __init__(self, acceptance: Mapping[str, Sequence[float]], *, families: Sequence[str] = tuple(shapes.FAMILIES),
                 first: str = "", second: str = NONE, budget: int = 16, max_budget: int = 64, prefix: int = 128):
        self.acceptance = {name: list(own) for name, own in acceptance.items()}
        once = {"continuous_update": False}  # draw when a field is left or Enter is pressed, not at each key
        self.first = ipywidgets.Combobox(value=first or families[-1], options=tuple(families), description="shape",
                                         **once)
        self.second = ipywidgets.Combobox(value=second, options=(NONE, *families), description="beside", **once)
        self.budget = ipywidgets.IntSlider(budget, 0, max_budget, description="budget",
                                           layout=ipywidgets.Layout(width="420px"), **once)
        self.decoding = ipywidgets.Dropdown(options=list(self.acceptance), description="decoding")
        self.prefix = ipywidgets.IntText(prefix, description="prefix", **once)
        self.node = ipywidgets.Text(NONE, description="mark node", **once)
        self.message, self.shown = ipywidgets.HTML(), ipywidgets.HTML()
        self.view = ipywidgets.VBox([
            ipywidgets.HBox([self.first, self.second, self.decoding]),
            ipywidgets.HBox([self.budget, self.prefix, self.node]), self.message, self.shown])
        for control in (self.first, self.second, self.budget, self.decoding, self.prefix, self.node):
            control.observe(self._refresh, names="value")
        self._refresh()

    @property
    def trees(self) -> dict[str, Tree]:
        """The shapes that the controls name, one or two, by name. ValueError for a name that is none."""
        names = [self.first.value.strip(), self.second.value.strip()]
        return {name: self._tree(name) for name in names if name.lower() not in ("", NONE)}

    def _tree(self, name: str) -> Tree:
        acceptance = self.acceptance[self.decoding.value]
        family, at, _ = name.partition("@")
        if at:
            return shapes.parse(name, acceptance=acceptance)
        return shapes.at_budget(family, self.budget.value, acceptance=acceptance)

    def _marked(self) -> int | None:
        """The number of the marked node; None for "none". ValueError for anything else."""
        text = self.node.value.strip().lower()
        if text in ("", NONE):
            return None
        if not text.isdigit():
            raise ValueError(f"mark node is {self.node.value!r}: give a node's number, or {NONE!r}")
        return int(text)

    def _refresh(self, change=None) -> None:
        try:
            if not 0 <= self.prefix.value <= MOST_PREFIX:
                raise ValueError(f"prefix is {self.prefix.value}: give 0 to {MOST_PREFIX}")
            node, trees = self._marked(), self.trees
            if not trees:
                raise ValueError("shape is empty: give a family or a name such as 'kary:2@14'")
            if node is not None and node > (last := max(tree.budget for tree in trees.values())):
                raise ValueError(f"mark node is {node}: give one of 0 to {last}, or {NONE!r}")
            drawn = [self._card(name, tree, node) for name, tree in trees.items()]
        except Exception as error:  # a callback's traceback would only appear in a log
            self.message.value = f'<span style="color:#B00020">{escape(str(error))}</span>'
            return
        self.message.value = ""
        self.shown.value = f'<div style="display:flex;gap:32px;overflow:auto">{"".join(drawn)}</div>'

    def _card(self, name: str, tree: Tree, node: int | None) -> str:
        """A shape's numbers, tree and mask."""
        node = node if node is not None and node < tree.size else None
        colour = theme.styles_of([name])[name].colour
        return (f'<div style="flex:none;max-width:100%;overflow:auto"><div style="line-height:1.5;max-width:620px">'
                f'{self._describe(name, tree, node)}</div><div style="display:flex;flex-wrap:wrap;gap:24px">'
                f'<div>{_tree_svg(tree, colour, node)}</div>'
                f'<div>{_mask_svg(tree, self.prefix.value, node)}</div></div></div>')

    def _describe(self, name: str, tree: Tree, node: int | None) -> str:
        expected = shapes.expected_accepted(tree, self.acceptance[self.decoding.value])
        about = shapes.FAMILIES.get(name.partition("@")[0], "")
        lines = [f"<b>{escape(theme.shown(name))}</b>{': ' if about else ''}{escape(about)}",
                 f"{drawing.describe(tree)}; the rank model expects {expected:.2f} accepted tokens per round, "
                 f"{expected + 1:.2f} with the target's own"]
        if node:
            prefix, depth = self.prefix.value, int(tree.depth[node])
            ranks = ", ".join(map(str, tree.choices()[node - 1]))
            lines.append(f"node {node}: reached by rank{'s' * (depth > 1)} {ranks}, position id {prefix} + {depth} = "
                         f"{prefix + depth}, sees {'the prefix and ' * (prefix > 0)}nodes "
                         f"{', '.join(map(str, tree.path(node)))}")
        return "<br>".join(lines)


# ------------------------------------------------------------------------------------------------------ drawings as SVG


def _tree_svg(shape: Tree, colour: str, node: int | None = None) -> str:
    """The tree with its root on top and each node's number; with a node, the path to it in dark."""
    path = set() if node is None else set(shape.path(node))
    places = drawing.positions(shape) * ACROSS + RADIUS + 3
    heights = shape.depth * DOWN + RADIUS + 3
    edges = [f'<line x1="{places[parent]:.0f}" y1="{heights[parent]}" x2="{places[child]:.0f}" y2="{heights[child]}" '
             f'stroke="{BLACK if {int(parent), child} <= path else "#bbb"}"/>'
             for child, parent in enumerate(shape.parents.tolist()) if child]
    discs = []
    for each, (x, y) in enumerate(zip(places, heights)):
        fill = BLACK if each == ROOT or each in path else colour if node is None else PALE
        letters = "#fff" if fill != PALE else "#222"
        discs.append(f'<circle cx="{x:.0f}" cy="{y}" r="{RADIUS}" fill="{fill}"/><text x="{x:.0f}" y="{y + 3.5:.1f}" '
                     f'text-anchor="middle" font-size="10" fill="{letters}">{each}</text>')
    return _svg(places.max() + RADIUS + 3, heights.max() + RADIUS + 3, [*edges, *discs])


def _mask_svg(shape: Tree, prefix: int, node: int | None = None) -> str:
    """Which nodes (columns) each node (row) attends to, after a broad column for the committed prefix, if there is one;
    position ids stand on the right. With a node, its row is in full colours and the others are pale.
    """
    left, wide = 26, 3 * CELL if prefix else 0
    cells = []
    for row in range(shape.size):
        lit = node is None or row == node
        top = row * CELL
        if prefix:
            cells.append(_cell(left, top, wide, PALE if lit else "#EEEEEE"))
        cells += [_cell(left + wide + int(column) * CELL, top, CELL, ANCESTOR if lit else PALE_ANCESTOR)
                  for column in shape.mask[row].nonzero()[0] if column != row]
        cells.append(_cell(left + wide + row * CELL, top, CELL, SELF if lit else PALE_SELF))
        cells.append(_number(left - 4, top, row, "end"))
        cells.append(_number(left + wide + shape.size * CELL + 4, top, prefix + int(shape.depth[row]), "start"))
    return _svg(left + wide + shape.size * CELL + 46, shape.size * CELL + 2, cells)


def _cell(left: float, top: float, width: float, colour: str) -> str:
    return f'<rect x="{left}" y="{top}" width="{width - 1}" height="{CELL - 1}" fill="{colour}"/>'


def _number(x: float, top: float, number: int, anchor: str) -> str:
    return f'<text x="{x}" y="{top + CELL - 3}" text-anchor="{anchor}" font-size="9" fill="#555">{number}</text>'


def _svg(width: float, height: float, drawn: list[str]) -> str:
    return (f'<svg xmlns="http://www.w3.org/2000/svg" width="{width:.0f}" height="{height:.0f}" '
            f'font-family="DejaVu Sans,Arial,sans-serif">{"".join(drawn)}</svg>')
