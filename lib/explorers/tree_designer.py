"""The tree designer: a draft tree under your hands, and after each change what it is worth on recorded text.

The choosing prompts give the hints and grow trees, the others judge: numbers and shades are of these.
"""

from collections.abc import Callable, Mapping
from functools import cache
from html import escape
from pathlib import Path

import anywidget
import ipywidgets
import numpy as np
import traitlets

from lib.lab import stats, theme
from lib.lab.theme import ROLES
from lib.replay import acceptance
from lib.replay.atlas import Atlas, levels_of
from lib.replay.rank_paths import MOST_RANK, rank_paths
from lib.study.costs import Costs
from lib.trees import shapes
from lib.trees.names import COMPARED
from lib.trees.picture import Node, mask_svg, shaded, tree_svg
from lib.trees.tree import ROOT, Tree

MOST_NODES = 64
BESIDE = ("chain", "optimal", acceptance.FREQUENT)  # families of as many nodes
STEPS = 200  # that can be undone
PREFIX = 128  # committed tokens before the tree, for the position ids
COMPACT = "line-height:1.4"  # a widget's own lines are twice as far apart
BEST, CHEAPEST = "#0072B2", "#D55E00"  # rings around the node below which to add, and the one to drop


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
            "add hint": lambda node: self.add(self.best_to_add()[0]),
            "drop hint": lambda node: self.prune(self.cheapest()[0]), "grow": lambda node: self.grow()}
        self._beside = cache(self._of_budget)
        self.past: list[Tree] = []
        self.future: list[Tree] = []
        self.tree, self.selected = shapes.chain(1), ROOT
        self.canvas.on_msg(self._answer)
        self.name.observe(self._start, names="value")
        for control in (self.drafter, self.machine, self.level):
            control.observe(self._show, names="value")
        self._start()

    # ---------------------------------------------------------------------------------------------------------- editing

    def add(self, node: int) -> None:
        """Gives a node its next child."""
        if self.tree.budget >= MOST_NODES:
            raise ValueError(f"the tree has {self.tree.budget} nodes, the most that stay readable: drop some")
        self.take(Tree.from_choices([*self.tree.choices(), (*self._path(node), len(self.tree.children(node)))]),
                  self._path(node))

    def prune(self, node: int) -> None:
        """Removes a node with all below it; later siblings take its rank. The root stays."""
        removed = self._path(node)
        if not removed:
            raise ValueError("the root is the last committed token, which cannot be pruned: give another node")
        *above, rank = removed
        level, paths = len(above), []
        for path in self.tree.choices():
            if path[: level + 1] != removed:
                is_later = list(path[:level]) == above and path[level:] > (rank,)
                paths.append((*path[:level], path[level] - 1, *path[level + 1 :]) if is_later else path)
        if not paths:
            raise ValueError("a draft tree has one node or more: add another one first")
        self.take(Tree.from_choices(paths), tuple(above))

    def undo(self) -> None:
        """Takes the last change back."""
        if self.past:
            self.future.append(self.tree)
            self._set(self.past.pop(), ())

    def redo(self) -> None:
        """Makes the last change again that was taken back."""
        if self.future:
            self.past.append(self.tree)
            self._set(self.future.pop(), ())

    def grow(self) -> None:
        """Takes the best static tree of the budget on the choosing prompts: the most frequent paths of ranks."""
        self.take(acceptance.tree_of(f"{acceptance.FREQUENT}@{self.budget.value}", self.choosing, self.drafter.value))

    def take(self, tree: Tree, selected: tuple[int, ...] = ()) -> None:
        """Another tree, which can be undone; selected: the path of the node that is selected."""
        self.past, self.future = [*self.past, self.tree][-STEPS:], []
        self._set(tree, selected)

    def best_to_add(self) -> tuple[int, float]:
        """The node whose next child would be accepted most often, and in what share of the choosing prompts' starts."""
        trie, nodes = self._counted()
        ranks = [len(self.tree.children(node)) for node in range(self.tree.size)]
        children = [trie.children(node).get(rank) if node >= 0 and rank < MOST_RANK else None
                    for node, rank in zip(nodes, ranks)]
        gains = [0 if child is None else trie.count(child) for child in children]
        return int(np.argmax(gains)), max(gains) / max(1, trie.count(ROOT))

    def cheapest(self) -> tuple[int, float]:
        """The leaf that is accepted least often, the last of equals, and in what share of starts."""
        trie, nodes = self._counted()
        losses = {leaf: trie.count(nodes[leaf]) if nodes[leaf] >= 0 else 0 for leaf in self.tree.leaves}
        leaf = min(losses, key=lambda one: (losses[one], -one))
        return int(leaf), losses[leaf] / max(1, trie.count(ROOT))

    def _counted(self):
        trie = rank_paths(self.choosing, self.drafter.value)
        return trie, trie.nodes(self.tree)

    def _path(self, node: int) -> tuple[int, ...]:
        return tuple(self.tree.choices()[node - 1]) if node else ()

    def _set(self, tree: Tree, selected: tuple[int, ...]) -> None:
        self.tree = tree
        self.selected = ([(), *map(tuple, tree.choices())]).index(selected)
        self._show()

    def _answer(self, canvas, content, buffers) -> None:
        """A command from the browser."""
        try:
            self.commands[content["command"]](int(content["node"]))
        except ValueError as error:
            self.message.value = _error(error)

    def _start(self, change=None) -> None:
        try:
            name = self.name.value.strip()
            sized = name if "@" in name or ":" in name else f"{name}@{self.budget.value}"
            tree = acceptance.tree_of(sized, self.choosing, self.drafter.value)
            if not 1 <= tree.budget <= MOST_NODES:
                raise ValueError(f"{name!r} has {tree.budget} nodes: give a tree of 1 to {MOST_NODES}")
        except Exception as error:  # a callback's traceback would only appear in a log
            self.message.value = _error(error)
            return
        self.take(tree)

    # ---------------------------------------------------------------------------------------------------------- showing

    def worth(self, tree: Tree) -> dict[str, object]:
        """The acceptance of a tree on the judging prompts: length and rate with intervals, by kind, and by node."""
        if tree.max_depth > (levels := levels_of(self.judging, self.drafter.value)):
            raise ValueError(f"the tree has {tree.max_depth} levels, {self.drafter.value!r} was recorded for {levels}: "
                             "drop the deepest nodes")
        rounds = acceptance.rounds_of(self.judging, tree, self.drafter.value)
        rows, nodes = acceptance.tally_walk(self.judging, rounds), acceptance.by_node(tree, rounds)
        generator = np.random.default_rng(0)
        length, rate = (stats.ratio(rows["accepted"], rows[name], generator) for name in ("rounds", "drafted"))
        kinds = rows[["accepted", "rounds"]].groupby(np.array(self.judging.kinds)).sum()
        return dict(tree=tree, length=length, rate=rate, kinds=(kinds["accepted"] / kinds["rounds"]).sort_values(),
                    shares=[1.0, *(nodes["accepted"] / nodes["rounds"].clip(lower=1))])

    def speed(self, tree: Tree, tokens: float) -> float | None:
        """Predicted speed over plain decoding on the chosen machine; None where the costs of none are given."""
        if self.machine.value is None:
            return None
        costs = self.costs[self.machine.value]
        draft = self.level.value / 1000 * tree.max_depth
        return tokens * float(costs.plain(1)) / (draft + float(costs.check(1, np.array(tree.budget))))

    def _of_budget(self, drafter: str, budget: int) -> dict[str, dict]:
        trees = {name: acceptance.tree_of(f"{name}@{budget}", self.choosing, drafter) for name in BESIDE}
        return {name: self.worth(tree) for name, tree in trees.items()
                if tree.max_depth <= levels_of(self.judging, drafter)}

    def _show(self, change=None) -> None:
        try:
            this = self.worth(self.tree)
            self.numbers.value = self._table({"this tree": this} | self._beside(self.drafter.value, self.tree.budget))
        except Exception as error:  # a callback's traceback would only appear in a log
            self.message.value = _error(error)
            return
        shares, (add, gain), (drop, loss) = this["shares"], self.best_to_add(), self.cheapest()
        self.message.value = ""
        canvas, rings = self.canvas, {drop: CHEAPEST, add: BEST}
        nodes = [Node(f"{share:.2f}".lstrip("0") if path else "root", shaded(share) if path else ROLES["root"],
                      f"node {node}, ranks {', '.join(map(str, path)) or 'none'}: accepted in {share:.1%} of rounds",
                      ring=rings.get(node, ""))
                 for node, (path, share) in enumerate(zip([(), *self.tree.choices()], shares))]
        with canvas.hold_sync():
            canvas.svg = tree_svg(self.tree, nodes)
            canvas.words = (f"{self.tree.budget} nodes: {this['length'].value:.3f} accepted tokens per round, rate "
                           f"{this['rate'].value:.1%}. Best to add: a child of node {add} (+{gain:.3f} per round, "
                           f"blue); cheapest to drop: node {drop} (-{loss:.3f}, red).")
            canvas.selected, canvas.undoable, canvas.redoable = self.selected, bool(self.past), bool(self.future)
            canvas.code = self.code()
            canvas.version += 1
        bars = "".join(
            f"<tr><td>{escape(kind)}</td><td>{value:.2f}</td><td><div style='background:{ROLES['accepted']};"
            f"height:.8em;width:{60 * value:.0f}px'></div></td></tr>" for kind, value in this["kinds"].items())
        self.kinds.value = (f"<table style='{COMPACT}'><tr><th>kind</th><th colspan=2>accepted tokens per round</th>"
                            f"</tr>{bars}</table>")
        self.mask.value = f"<div>mask; position ids after {PREFIX} tokens</div>{mask_svg(self.tree, PREFIX)}"
        self.copied.value = f"<details><summary>Python, choices</summary><pre>{escape(canvas.code)}</pre></details>"

    def _table(self, rows: Mapping[str, dict]) -> str:
        cells = []
        for name, one in rows.items():
            length, rate, speed = one["length"], one["rate"], self.speed(one["tree"], 1 + one["length"].value)
            strong = "b" if name == "this tree" else "span"
            cells.append("<tr>" + "".join(f"<td><{strong}>{text}</{strong}></td>" for text in (
                escape(theme.shown(name)), one["tree"].max_depth, stats.format_estimate(length),
                stats.format_estimate(rate, ".1%"), "–" if speed is None else f"{speed:.2f}")) + "</tr>")
        head = "".join(f"<th>{text}</th>" for text in (
            f"{self.tree.budget} nodes", "depth", "acceptance length", "acceptance rate", "predicted speed over plain"))
        return (f"<table style='{COMPACT};border-spacing:12px 0'><tr>{head}</tr>{''.join(cells)}</table>"
                f"{len(set(self.judging.prompts))} prompts, 95 % intervals; grown trees and hints are of others.")

    def code(self) -> str:
        """The tree as a Python line, and as choices in Medusa's form."""
        choices = [tuple(path) for path in self.tree.choices()]
        return f"tree = Tree.from_choices({choices})\nchoices = {[list(path) for path in choices]}"


def _error(error: Exception) -> str:
    return f'<span style="color:#B00020">{escape(str(error))}</span>'
