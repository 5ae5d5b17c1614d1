"""The shape explorer: choose a family and a budget, and see tree, mask and position ids change."""

from collections.abc import Sequence
from html import escape
from io import BytesIO

import ipywidgets
from matplotlib import rc_context
from matplotlib.figure import Figure

from lib.lab import theme
from lib.trees import drawing, shapes
from lib.trees.tree import Tree

NO_NODE = 0  # stands for "no row marked": the root's row is the same in every tree


class ShapeExplorer:
    """Controls for family, budget, prefix length and one node, above a picture and its numbers.

    acceptance_by_rank: float[R], from which sparse and optimal trees are grown and lengths are expected.
    It opens on `family`, by default the last of `families`. Show `view`; the controls are `family`, `budget`,
    `prefix_length` and `node`, the results `picture` and `numbers`.
    """

    def __init__(self, acceptance_by_rank: Sequence[float], *, families: Sequence[str] = tuple(shapes.FAMILIES),
                 family: str | None = None, budget: int = 16, max_budget: int = 64, prefix_length: int = 128):
        self.acceptance = list(acceptance_by_rank)
        wide = {"continuous_update": False, "layout": ipywidgets.Layout(width="420px")}
        self.family = ipywidgets.Dropdown(options=list(families), value=family or families[-1], description="family")
        self.budget = ipywidgets.IntSlider(budget, 0, max_budget, description="budget", **wide)
        self.prefix_length = ipywidgets.BoundedIntText(prefix_length, 0, 1 << 20, description="prefix")
        self.node = ipywidgets.IntSlider(NO_NODE, 0, budget, description="mark node", **wide)
        self.picture = ipywidgets.Image(format="png", layout=ipywidgets.Layout(max_width="1150px"))
        self.numbers = ipywidgets.HTML()
        self.view = ipywidgets.VBox([
            ipywidgets.HBox([self.family, self.prefix_length]), ipywidgets.HBox([self.budget, self.node]),
            self.numbers, self.picture])
        for control in (self.family, self.budget, self.prefix_length, self.node):
            control.observe(self._refresh, names="value")
        self._refresh()

    @property
    def tree(self) -> Tree:
        """The tree that the controls name."""
        return shapes.at_budget(self.family.value, self.budget.value, acceptance=self.acceptance)

    def figure(self) -> Figure:
        """The picture for the current controls."""
        tree = self.tree
        return drawing.shape_card(
            tree, prefix_length=self.prefix_length.value, node=self.node.value or None,
            colour=theme.styles_of([self.family.value])[self.family.value].colour,
            title=f"{self.family.value}@{tree.budget}")

    def _refresh(self, change=None) -> None:
        if self.node.max != self.budget.value:
            self.node.max = self.budget.value  # a larger node becomes the last one, which refreshes again
        figure, png = self.figure(), BytesIO()
        with rc_context({"savefig.bbox": "standard"}):  # without cropping, which would draw it twice
            figure.savefig(png, format="png")
        theme.close(figure)
        self.numbers.value = self._describe(self.tree)
        self.picture.value = png.getvalue()

    def _describe(self, tree: Tree) -> str:
        expected = shapes.expected_accepted(tree, self.acceptance)
        family = escape(shapes.FAMILIES.get(self.family.value, self.family.value))
        lines = [f"<b>{family}</b>: {drawing.describe(tree)}; the rank model expects {expected:.2f} accepted tokens "
                 f"per round, {expected + 1:.2f} with the target's own"]
        if self.node.value != NO_NODE:
            node, prefix = self.node.value, self.prefix_length.value
            depth, seen = int(tree.depth[node]), ", ".join(map(str, tree.path(node)))
            ranks = ", ".join(map(str, tree.choices()[node - 1]))
            lines.append(f"node {node}: reached by rank{'s' * (depth > 1)} {ranks}, position id {prefix} + {depth} = "
                         f"{prefix + depth}, sees {'the prefix and ' * (prefix > 0)}nodes {seen}")
        return "<br>".join(lines)
