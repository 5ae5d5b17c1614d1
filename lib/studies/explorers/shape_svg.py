"""A shape and the mask of its forward pass as SVG drawings, whose nodes keep their size and numbers at any budget."""

from lib.lab.theme import BLACK, PALE, ROLES
from lib.trees.drawing import positions
from lib.trees.tree import ROOT, Tree

ACROSS, DOWN, RADIUS = 25, 40, 11  # pixels: between nodes, between levels, of a node
CELL = 12  # pixels of a cell of the mask
SELF, ANCESTOR, PALE_SELF, PALE_ANCESTOR = BLACK, ROLES["drafted"], "#9A9A9A", "#CFE6F5"


def tree(shape: Tree, colour: str, node: int | None = None) -> str:
    """The tree with its root on top and each node's number; with a node, the path to it in dark."""
    path = set() if node is None else set(shape.path(node))
    places = positions(shape) * ACROSS + RADIUS + 3
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


def mask(shape: Tree, prefix: int, node: int | None = None) -> str:
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
