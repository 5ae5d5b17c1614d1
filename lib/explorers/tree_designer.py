"""The tree designer: a draft tree under your hands, and after each change what it is worth on recorded text.

The choosing prompts give the hints and grow trees, the others judge: numbers and shades are of these.
"""

from collections.abc import Callable, Mapping, Sequence
from html import escape
from pathlib import Path

import anywidget
import ipywidgets
import numpy as np
import pandas as pd
import traitlets

from lib.lab import stats, theme
from lib.lab.theme import ROLES
from lib.replay import acceptance
from lib.replay.atlas import Atlas, levels_of
from lib.replay.rank_paths import rank_paths
from lib.study.costs import Costs
from lib.trees import shapes
from lib.trees.names import COMPARED
from lib.trees.picture import Node, mask_svg, shaded, tree_svg
from lib.trees.tree import NO_PARENT, ROOT, Tree

MOST_NODES = 64
BESIDE = ("chain", "optimal", acceptance.FREQUENT)  # families of as many nodes
PREFIX = 128  # committed tokens before the tree, for the position ids
BEST, CHEAPEST = theme.BLUE, theme.VERMILLION  # rings around the node below which to add, and the one to drop


class Canvas(anywidget.AnyWidget):
    """The drawing in the browser; commands come as messages, and a new `version` shows the other values."""

    _esm = Path(__file__).with_name("canvas.js")
    svg, words, code = (traitlets.Unicode().tag(sync=True) for _ in range(3))
    selected, version = (traitlets.Int().tag(sync=True) for _ in range(2))
    undoable, redoable = (traitlets.Bool().tag(sync=True) for _ in range(2))


class TreeDesigner:
    """A tree on a recorded trace, edited by clicks, keys or the methods `add`, `prune`, `undo`, `redo`, `take`.

    drafter: of the trace; the first one where none is named. costs: of machines, by name, from which speed follows;
    level: milliseconds of drafting one level there. Show `view`; errors appear in `message`, and the last tree stays.
    """

    def __init__(self, atlas: Atlas, *, drafter: str = "", name: str = "kary:2@14",
                 costs: Mapping[str, Costs] | None = None, level: float = 0.0):
        chooses = np.isin(np.array(atlas.trace.prompts), atlas.trace.labels["choosing"])
        self.choosing, self.judging = (atlas.trace.select(part & ~atlas.trace.looping) for part in (chooses, ~chooses))
        drafters, self.costs = list(atlas.trace.ranks), costs or {}
        late = {"continuous_update": False}  # not at each key
        self.drafter = ipywidgets.Dropdown(options=drafters, value=drafter or drafters[0], description="drafter")
        self.name = ipywidgets.Combobox(value=name, options=(*COMPARED, acceptance.FREQUENT),
                                        description="start from", **late)
        self.budget = ipywidgets.BoundedIntText(16, 1, MOST_NODES, description="budget")
        self.machine = ipywidgets.Dropdown(options=[*self.costs], description="costs of")
        self.level = ipywidgets.BoundedFloatText(level, min=0.0, max=1e6, description="level (ms)", **late)
        self.canvas, self.message = Canvas(), ipywidgets.HTML()
        self.numbers, self.kinds, self.mask, self.copied = (ipywidgets.HTML() for _ in range(4))
        wrapped = {"flex_flow": "row wrap"}
        self.view = ipywidgets.VBox([
            ipywidgets.HBox([self.drafter, self.name, self.budget], layout=wrapped),
            ipywidgets.HBox([self.machine, self.level], layout=wrapped), self.message, self.canvas,
            self.numbers, ipywidgets.HBox([self.mask, self.kinds], layout=wrapped), self.copied])
        self.commands: Mapping[str, Callable[[int], None]] = {
            "add": self.add, "prune": self.prune, "undo": lambda node: self.undo(), "redo": lambda node: self.redo(),
            "add hint": lambda node: self.add(self.hints()[0][0]),
            "drop hint": lambda node: self.prune(self.hints()[1][0]),
            "grow": lambda node: self.take(self._named(f"{acceptance.FREQUENT}@{self.budget.value}"))}
        self.tree = shapes.chain(1)
        self.history, self.position, self.selected = [self.tree], 0, ROOT
        self.canvas.on_msg(lambda canvas, content, buffers: self._try(
            lambda: self.commands[content["command"]](int(content["node"]))))
        self.name.observe(lambda change: self._try(self._start), names="value")
        for control in (self.drafter, self.machine, self.level):
            control.observe(lambda change: self._try(
                lambda: self._set(self.history, self.position, self.selected)), names="value")
        self._try(self._start)

    def _try(self, change: Callable[[], None]) -> None:
        """Makes a change; its error becomes the message, since a callback's traceback would only appear in a log."""
        try:
            change()
            self.message.value = ""
        except Exception as error:
            self.message.value = f'<span style="color:#B00020">{escape(str(error))}</span>'

    # ---------------------------------------------------------------------------------------------------------- editing

    def add(self, node: int) -> None:
        """Gives a node a child, of the first rank that is free."""
        choices = [(), *self.tree.choices()]
        self.take(Tree.from_choices([*choices[1:], (*choices[node], self._free_rank(node))]), node)

    def prune(self, node: int) -> None:
        """Removes a node with all below it; later siblings take its rank. The root stays."""
        tree, kept = self.tree, ~self.tree.mask[:, node]
        if node == ROOT:
            raise ValueError("the root is the last committed token, which cannot be pruned: give another node")
        is_later = (tree.parents == tree.parents[node]) & (tree.rank > tree.rank[node])
        numbers = np.cumsum(kept) - 1  # of the nodes that stay
        parents = [NO_PARENT, *numbers[tree.parents[kept][1:]]]
        self.take(Tree(parents, (tree.rank - is_later)[kept]), int(tree.parents[node]))

    def undo(self) -> None:
        """Takes the last change back."""
        if self.position:
            self._set(self.history, self.position - 1)

    def redo(self) -> None:
        """Makes the last change again that was taken back."""
        if self.position + 1 < len(self.history):
            self._set(self.history, self.position + 1)

    def take(self, tree: Tree, selected: int = ROOT) -> None:
        """Another tree, which can be undone; selected: its node that is selected."""
        self._set([*self.history[: self.position + 1], tree], self.position + 1, selected)

    def hints(self) -> tuple[tuple[int, float], tuple[int, float]]:
        """The node whose next child would be accepted most often, and the leaf that is accepted least often (the last
        of equals), each with the share of the choosing prompts' starts.
        """
        tree, trie = self.tree, rank_paths(self.choosing, self.drafter.value)
        children = [self._free_rank(node) for node in range(tree.size)]  # one more of each node
        wider = Tree([*tree.parents, *range(tree.size)], [*tree.rank, *children])
        counts = np.array([trie.count(node) if node >= 0 else 0 for node in trie.nodes(wider)])
        shares, gains = np.split(counts / max(1, trie.count(ROOT)), [tree.size])
        drop = max(tree.leaves, key=lambda leaf: (-shares[leaf], leaf))
        return (int(gains.argmax()), gains.max()), (int(drop), shares[drop])

    def _free_rank(self, node: int) -> int:
        taken = {int(self.tree.rank[child]) for child in self.tree.children(node)}
        return min({*range(len(taken) + 1)} - taken)

    def _named(self, name: str) -> Tree:
        return acceptance.tree_of(name, self.choosing, self.drafter.value)

    def _start(self) -> None:
        name = self.name.value.strip()
        self.take(self._named(name if "@" in name or ":" in name else f"{name}@{self.budget.value}"))

    # ---------------------------------------------------------------------------------------------------------- showing

    def worth(self, tree: Tree) -> dict[str, object]:
        """The acceptance of a tree on the judging prompts, with intervals, by kind and by node; and its predicted speed
        over plain decoding on the chosen machine.
        """
        rounds = acceptance.rounds_of(self.judging, tree, self.drafter.value)
        rows, nodes = acceptance.tally_walk(self.judging, rounds), acceptance.by_node(tree, rounds)
        generator = np.random.default_rng(0)
        length, rate = (stats.ratio(rows["accepted"], rows[name], generator) for name in ("rounds", "drafted"))
        kinds = rows[["accepted", "rounds"]].groupby(np.array(self.judging.kinds)).sum()
        speed, costs = np.nan, self.costs.get(self.machine.value)
        if costs is not None:
            seconds = self.level.value / 1000 * tree.max_depth + float(costs.check(1, np.array(tree.budget)))
            speed = (1 + length.value) * float(costs.plain(1)) / seconds
        return dict(depth=tree.max_depth, length=length, rate=rate, speed=speed,
                    kinds=(kinds["accepted"] / kinds["rounds"]).sort_values(),
                    shares=[1.0, *(nodes["accepted"] / nodes["rounds"].clip(lower=1))])

    def _set(self, history: list[Tree], position: int, selected: int = ROOT) -> None:
        tree, drafter, levels = history[position], self.drafter.value, levels_of(self.judging, self.drafter.value)
        if not 1 <= tree.budget <= MOST_NODES:
            raise ValueError(f"the tree would have {tree.budget} nodes: give one of 1 to {MOST_NODES}")
        if tree.max_depth > levels:
            raise ValueError(f"the tree has {tree.max_depth} levels, {drafter!r} was recorded for {levels}: drop the "
                             "deepest nodes")
        self.tree, self.history, self.position, self.selected = tree, history, position, selected
        trees = {"this tree": tree} | {name: self._named(f"{name}@{tree.budget}") for name in BESIDE}
        worths = {name: self.worth(one) for name, one in trees.items() if one.max_depth <= levels}
        this, choices = worths["this tree"], tree.choices()
        code = f"tree = Tree.from_choices({choices})\nchoices = {[*map(list, choices)]}"
        self._draw(this["shares"], f"{tree.budget} nodes: {this['length'].value:.3f} accepted tokens per round, rate "
                   f"{this['rate'].value:.1%}.", code)
        table = pd.DataFrame([{
            f"{tree.budget} nodes": theme.shown(name), "depth": worth["depth"],
            "acceptance length": stats.format_estimate(worth["length"]),
            "acceptance rate": stats.format_estimate(worth["rate"], ".1%"),
            "predicted speed over plain": worth["speed"]} for name, worth in worths.items()])
        self.numbers.value = (
            f"{table.to_html(index=False, border=0, na_rep='–', float_format='{:.2f}'.format)}"
            f"{len(set(self.judging.prompts))} prompts, 95 % intervals; grown trees and hints are of others.")
        self.kinds.value = this["kinds"].to_frame("accepted tokens per round").style.format("{:.2f}").bar(
            color=ROLES["accepted"], vmin=0).to_html()
        self.mask.value = f"<div>mask; position ids after {PREFIX} tokens</div>{mask_svg(tree, PREFIX)}"
        self.copied.value = f"<details><summary>Python, choices</summary><pre>{escape(code)}</pre></details>"

    def _draw(self, shares: Sequence[float], words: str, code: str) -> None:
        """The tree with the shares of rounds that accept its nodes, and hints."""
        (add, gain), (drop, loss) = self.hints()
        rings, paths = {drop: CHEAPEST, add: BEST}, [(), *self.tree.choices()]
        nodes = [Node(f"{share:.2f}".lstrip("0") if path else "root", shaded(share) if path else ROLES["root"],
                      f"node {node}, ranks {', '.join(map(str, path)) or 'none'}: accepted in {share:.1%} of rounds",
                      ring=rings.get(node, "")) for node, (path, share) in enumerate(zip(paths, shares))]
        canvas = self.canvas
        with canvas.hold_sync():
            canvas.svg, canvas.code, canvas.selected = tree_svg(self.tree, nodes), code, self.selected
            canvas.words = (f"{words} Best to add: a child of node {add} (+{gain:.3f} per round, blue); cheapest to "
                            f"drop: node {drop} (-{loss:.3f}, red).")
            canvas.undoable, canvas.redoable = self.position > 0, self.position + 1 < len(self.history)
            canvas.version += 1
