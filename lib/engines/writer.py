"""What writes a draft setting of a serving engine as a line of text, a row of `settings.ENGINES`."""

import shlex
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from lib.trees.growth import Growth
from lib.trees.tree import Tree

CHAIN, DYNAMIC = "chain", "dynamic tree"  # the forms of draft that engines know
FOLDER, GGUF = "folder or hub id", "GGUF file"  # the forms of weights that they read
LONGEST = 4  # tokens of the n-grams that look-up compares, as `lib.drafters.text_drafters.LookupDrafter` does


@dataclass(frozen=True)
class Dynamic:
    """A tree that an engine grows anew in each round (EAGLE-2): `steps` levels; the best `top_k` nodes of each level
    get `top_k` children each, and the `nodes` best of all candidates are verified, root excluded.
    """

    steps: int
    top_k: int
    nodes: int

    @classmethod
    def like(cls, tree: Tree | Growth) -> "Dynamic":
        """The dynamic tree with a rule's depth and budget, and as top-k the nodes of a level that it expands; or with a
        static tree's depth and nodes, and as top-k its widest level of nodes with children or its largest family: it
        can grow every node of the static one.
        """
        if isinstance(tree, Growth):
            return cls(tree.max_depth, getattr(tree, "level_width", None) or tree.width, tree.budget)
        families, inner = np.bincount(tree.parents[1:]), np.unique(tree.parents[1:])
        return cls(tree.max_depth, int(max(families.max(), np.bincount(tree.depth[inner]).max())), tree.budget)


@dataclass(frozen=True)
class Writer:
    """A setting of an engine: the form of draft that it can express, as a line of text.

    template: the line, with the fields of `line` in braces.
    drafters: the kinds of drafter (see `lib.drafters.registry`) that it can run, each with fields of its own. versions:
    of the engine, in words. reads: the form of the drafter's weights; empty for none.
    """

    form: str
    template: str
    drafters: Mapping[str, Mapping[str, object]]
    versions: str
    reads: str = FOLDER

    def line(self, setting: Tree | Dynamic, drafter: str, place: str = "") -> str:
        """The setting as text, for a kind of drafter that it can run: a chain, or of a dynamic form a dynamic tree.

        place: of the drafter's weights, if any.
        """
        if self.form == CHAIN:
            setting = Dynamic(setting.budget, 1, setting.budget)
        room = max(setting.top_k, -(-setting.nodes // setting.steps))  # a top-k of each level that holds all nodes
        return self.template.format(
            model=place, quoted=shlex.quote(place), longest=LONGEST, matched=min(LONGEST, setting.nodes),
            steps=setting.steps, later=setting.steps - 1, top_k=setting.top_k, room=room, nodes=setting.nodes,
            with_root=setting.nodes + 1, **self.drafters[drafter])
