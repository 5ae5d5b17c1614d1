"""The shape explorer: one or two shapes by name, with their trees, masks, position ids and expected acceptance."""

from collections.abc import Mapping, Sequence
from html import escape

import ipywidgets

from lib.lab import theme
from lib.trees import drawing, shapes
from lib.trees.tree import Tree

NONE = "none"
MOST_PREFIX = 1 << 20


class ShapeExplorer:
    """Controls for two shapes, the budget, the decoding, the prefix and one node, above the shapes side by side.

    acceptance: by decoding ("greedy", "sampled") float[R], from which sparse and optimal trees are grown and lengths
    are expected. A shape is a family, to which the budget applies, or a name with its own, such as "kary:2@14"; the
    second one may be "none". The node is a number or "none". Show `view`; the controls are `first`, `second`, `budget`,
    `decoding`, `prefix` and `node`, the result `shown`; errors appear in `message`, and the last picture stays.
    """

    def __init__(self, acceptance: Mapping[str, Sequence[float]], *, families: Sequence[str] = tuple(shapes.FAMILIES),
                 first: str = "", second: str = NONE, budget: int = 16, max_budget: int = 64, prefix: int = 128):
        self.acceptance = {name: list(rates) for name, rates in acceptance.items()}
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
        acceptance, named = self.acceptance[self.decoding.value], {}
        for name in (self.first.value.strip(), self.second.value.strip()):
            if "@" in name:
                named[name] = shapes.parse(name, acceptance=acceptance)
            elif name.lower() not in ("", NONE):
                named[name] = shapes.at_budget(name, self.budget.value, acceptance=acceptance)
        return named

    def _marked(self, last: int) -> int | None:
        """The number of the marked node, up to the last one; None for "none". ValueError for anything else."""
        text = self.node.value.strip().lower()
        if text in ("", NONE):
            return None
        if not text.isdigit():
            raise ValueError(f"mark node is {self.node.value!r}: give a node's number, or {NONE!r}")
        if int(text) > last:
            raise ValueError(f"mark node is {text}: give one of 0 to {last}, or {NONE!r}")
        return int(text)

    def _refresh(self, change=None) -> None:
        cards = []
        try:
            if not 0 <= self.prefix.value <= MOST_PREFIX:
                raise ValueError(f"prefix is {self.prefix.value}: give 0 to {MOST_PREFIX}")
            trees = self.trees
            if not trees:
                raise ValueError("shape is empty: give a family or a name such as 'kary:2@14'")
            marked = self._marked(max(tree.budget for tree in trees.values()))
            for name, tree in trees.items():
                node = marked if marked is not None and marked < tree.size else None
                figure = drawing.shape_card(tree, prefix_length=self.prefix.value, node=node)
                cards.append('<div style="flex:none;max-width:100%;overflow:auto"><div style="line-height:1.5">'
                             f"{self._describe(name, tree, node)}</div>{drawing.as_svg(figure)}</div>")
        except Exception as error:  # a callback's traceback would only appear in a log
            self.message.value = f'<span style="color:#B00020">{escape(str(error))}</span>'
            return
        self.message.value = ""
        self.shown.value = f'<div style="display:flex;flex-wrap:wrap;gap:32px">{"".join(cards)}</div>'

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
