"""Every draft setting of a serving engine by name: its form, the drafters that it can run, and how it is written."""

from dataclasses import dataclass
from typing import Callable, Mapping

from lib.cost.engines import writers
from lib.cost.engines.writers import ANY_RANK, CHAIN, DYNAMIC, LEVELS, MOST_RANK, TREE, Dynamic, equal_levels
from lib.trees.growth.candidates import Growth
from lib.trees.tree import Tree

Setting = Tree | Dynamic


@dataclass(frozen=True)
class Engine:
    """A setting of an engine: the form of draft that it can express, in a line of text.

    drafters: the kinds of drafter (see `lib.drafters.registry`) that it can run, each with its keywords of `write`.
    versions: of the engine, in words. most_rank: the engine knows ranks below it alone.
    """

    form: str
    write: Callable[..., str]
    drafters: Mapping[str, Mapping[str, object]]
    versions: str
    most_rank: int = ANY_RANK

    def line(self, setting: Setting, drafter: str) -> str:
        """The setting as text, for a kind of drafter that it can run."""
        return self.write(setting, **self.drafters[drafter])

    def takes(self, tree: Tree) -> bool:
        """Whether it can draft a tree as it is; a tree that the engine grows by itself is never the same."""
        if self.form == DYNAMIC:
            return False
        if self.form == LEVELS:
            return equal_levels(tree) is not None
        if self.form == CHAIN:
            return tree.max_depth == tree.budget and not tree.rank.any()
        return tree.rank.max(initial=0) < self.most_rank


EAGLES = ("eagle", "eagle3")
METHODS = {kind: {"method": kind} for kind in (*EAGLES, "medusa")}
ALGORITHMS = {kind: {"algorithm": kind.upper()} for kind in EAGLES}
ANY_VERSION = "any version"

ENGINES: dict[str, Engine] = {
    "transformers, look-up": Engine(CHAIN, writers.write_transformers_lookup, {"lookup": {}},
                                    "4.37 and later, batch 1"),
    "transformers": Engine(CHAIN, writers.write_transformers, {"model": {}}, "4.45 and later, batch 1"),
    "vLLM, chain": Engine(CHAIN, writers.write_vllm, {"model": {}, **METHODS},
                          "0.8 and later; draft models not in 0.10 to 0.14"),
    "vLLM, n-gram": Engine(CHAIN, writers.write_vllm_ngram, {"lookup": {}}, "0.8 and later"),
    "vLLM, suffix": Engine(CHAIN, writers.write_vllm_suffix, {"sam": {}}, "0.12 and later, with arctic-inference"),
    "vLLM, token tree": Engine(LEVELS, writers.write_vllm_tree, {kind: METHODS[kind] for kind in EAGLES},
                               "0.11 to May 2026, with tree attention"),
    "SGLang, chain": Engine(CHAIN, writers.write_sglang, {"model": {}, **ALGORITHMS}, ANY_VERSION),
    "SGLang, n-gram": Engine(CHAIN, writers.write_sglang_ngram, {"lookup": {}, "sam": {}}, "0.5.4 and later, on CUDA"),
    "SGLang, dynamic tree": Engine(DYNAMIC, writers.write_sglang_dynamic, ALGORITHMS, ANY_VERSION),
    "llama.cpp": Engine(CHAIN, writers.write_llama_cpp, {"model": {}, "eagle3": {"kind": "draft-eagle3"}},
                        "builds since May 2026"),
    "llama.cpp, n-gram": Engine(CHAIN, writers.write_llama_cpp_ngram, {"lookup": {}}, "builds since May 2026"),
    "Medusa": Engine(TREE, writers.write_medusa, {"medusa": {}}, ANY_VERSION, MOST_RANK),
    "EAGLE-1": Engine(TREE, writers.write_eagle, {"eagle": {}}, ANY_VERSION, MOST_RANK),
    "EAGLE-2, EAGLE-3": Engine(DYNAMIC, writers.write_eagle_dynamic, {kind: {} for kind in EAGLES}, ANY_VERSION),
    "TensorRT-LLM, Medusa": Engine(TREE, writers.write_tensorrt_medusa, {"medusa": {}},
                                   "versions with an engine backend (until mid-2026)", MOST_RANK),
    "TensorRT-LLM, EAGLE": Engine(TREE, writers.write_tensorrt_eagle, {"eagle": {}}, "until 1.3", MOST_RANK),
    "TensorRT-LLM, dynamic tree": Engine(DYNAMIC, writers.write_tensorrt_dynamic, {"eagle3": {}}, "1.0 and later"),
}
SAME, CHAINED, GROWN = "the recommended tree", "the best chain", "as deep and as large, grown anew in each round"


def settings(drafter: str, tree: Tree | Growth, chain: Tree) -> list[dict[str, str]]:
    """What to set in each engine that can run a drafter, one dict each: engine, setting (a line of text), draft (what
    the setting drafts: the tree, the chain in its place, or a tree that the engine grows) and versions.

    drafter: a spec of `drafters.make`; engines name other kinds of drafter not at all. tree: also a growth rule; no
    engine chooses a budget in each round. chain: the drafter's best chain, for engines that cannot express the tree.
    Empty for plain decoding.
    """
    kind, rows = drafter.partition(":")[0], []
    for name, engine in ENGINES.items() if tree.budget else ():
        if kind not in engine.drafters or engine.form == DYNAMIC and hasattr(tree, "costs"):
            continue
        if engine.form == DYNAMIC:
            setting, draft = Dynamic.like(tree), GROWN
        else:
            same = isinstance(tree, Tree) and engine.takes(tree)
            setting, draft = (tree, SAME) if same else (chain, CHAINED)
        if draft != CHAINED or chain.budget:
            rows.append(dict(engine=name, setting=engine.line(setting, kind), draft=draft, versions=engine.versions))
    return rows
