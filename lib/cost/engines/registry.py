"""Every draft setting of a serving engine by name: its form, how it is written and read, and the nearest setting to a
tree that the engine cannot express.
"""

from dataclasses import dataclass, field
from typing import Callable, Iterator, Mapping

from lib.cost import best_tree
from lib.cost.best_tree import Limits
from lib.cost.engines import choices, servers
from lib.cost.engines.forms import ANY_RANK, CHAIN, DYNAMIC, LEVELS, TREE, Dynamic, equal_levels
from lib.replay.trace import Trace
from lib.trees import shapes
from lib.trees.tree import Tree

Setting = Tree | Dynamic


@dataclass(frozen=True)
class Engine:
    """A setting of an engine: the form of draft that it can express, in a line of text.

    most_rank: the engine knows ranks below it alone. by_head: keywords of `write` by the kind of trained head that
    drafts, where the line names it; for other drafters `write` gives the line for a language model.
    """

    form: str
    write: Callable[..., str]
    note: str
    most_rank: int = ANY_RANK
    by_head: Mapping[str, Mapping[str, str]] = field(default_factory=dict)

    def line(self, setting: Setting, drafter: str = "") -> str:
        """The setting as text. drafter: its name; only the kinds of `by_head` change the line."""
        return self.write(setting, **self.by_head.get(drafter, {}))


EAGLES = ("eagle", "eagle3")
METHODS = {kind: {"method": kind} for kind in (*EAGLES, "medusa")}
ALGORITHMS = {kind: {"algorithm": kind.upper()} for kind in EAGLES}

ENGINES: dict[str, Engine] = {
    "Medusa": Engine(TREE, choices.write_medusa, "heads of its own; no deeper than it has heads", choices.MOST_RANK),
    "EAGLE-1": Engine(TREE, choices.write_eagle, "a head of its own", choices.MOST_RANK),
    "EAGLE-2, EAGLE-3": Engine(DYNAMIC, choices.write_eagle_dynamic, "a head of its own"),
    "vLLM, chain": Engine(CHAIN, servers.write_vllm, "any drafter of its list of methods", by_head=METHODS),
    "vLLM, token tree": Engine(LEVELS, servers.write_vllm_tree,
                               "EAGLE drafters, versions with tree attention (until May 2026)",
                               by_head={kind: METHODS[kind] for kind in EAGLES}),
    "SGLang, chain": Engine(CHAIN, servers.write_sglang, "top-k 1", by_head=ALGORITHMS),
    "SGLang, dynamic tree": Engine(DYNAMIC, servers.write_sglang_dynamic, "top-k above 1", by_head=ALGORITHMS),
    "TensorRT-LLM, Medusa": Engine(TREE, choices.write_tensorrt_medusa,
                                   "heads of its own; versions with an engine backend (until mid-2026)",
                                   choices.MOST_RANK),
    "TensorRT-LLM, EAGLE": Engine(TREE, choices.write_tensorrt_eagle, "versions until 1.3", choices.MOST_RANK),
    "TensorRT-LLM, dynamic tree": Engine(DYNAMIC, choices.write_tensorrt_dynamic, "EAGLE-3 drafters"),
    "transformers": Engine(CHAIN, choices.write_transformers, "batch 1"),
    "llama.cpp": Engine(CHAIN, servers.write_llama_cpp, "any drafter of the same vocabulary",
                        by_head={"eagle3": {"kind": "draft-eagle3"}}),
}


def nearest(engine: Engine, tree: Tree, choosing: Trace, cost: Callable[[Tree], float], limits: Limits,
            drafter: str | None = None) -> Setting:
    """The tree itself where the engine takes it, else the setting of its form that is fastest on the trace.

    For a static tree with ranks that are too large, the fastest of: the tree without them, the most frequent rank paths
    that the engine knows, and a favourite alone. A dynamic tree gets the static one's depth, width and nodes: the
    engine decides how it grows, and static replay cannot judge it.
    """
    if engine.form == DYNAMIC:
        return Dynamic.like(tree)
    if engine.form == CHAIN:
        candidates = [shapes.chain(length) for length in range(1, min(limits.nodes, limits.depth) + 1)]
        return fastest(candidates, choosing, cost, drafter)
    if engine.form == LEVELS:
        if equal_levels(tree) is not None:
            return tree
        return fastest([shapes.expansion(levels) for levels in branchings(limits)], choosing, cost, drafter)
    if tree.rank.max(initial=0) < engine.most_rank:
        return tree
    return fastest(_of_ranks_below(engine.most_rank, tree, choosing, limits, drafter), choosing, cost, drafter)


def _of_ranks_below(most_rank: int, tree: Tree, choosing: Trace, limits: Limits, drafter: str | None) -> list[Tree]:
    """Trees within the limits that have no child of a larger rank."""
    left = [choice for choice in tree.choices() if max(choice) < most_rank]
    paths = best_tree.paths_within(choosing, limits, drafter, most_rank=most_rank)
    frequent = [paths[:nodes] for nodes in range(1, len(paths) + 1)]
    return [Tree.from_choices(choices) for choices in ([left] if left else []) + frequent + [[(0,)]]]


def fastest(candidates: list[Tree], choosing: Trace, cost: Callable[[Tree], float], drafter: str | None) -> Tree:
    """The tree of most tokens per second on the trace."""
    return max(candidates, key=lambda tree: (1 + best_tree.mean_accepted(choosing, tree, drafter)) / cost(tree))


def branchings(limits: Limits, most: int = 8) -> Iterator[list[int]]:
    """All <k1, k2, ..> within the limits with at most `most` children per node and no more at a deeper level."""
    def below(levels: list[int], width: int, left: int) -> Iterator[list[int]]:
        for branches in range(1, min(most, levels[-1] if levels else most, left // width) + 1):
            own = [*levels, branches]
            yield own
            if len(own) < limits.depth:
                yield from below(own, width * branches, left - width * branches)

    return below([], 1, limits.nodes)
