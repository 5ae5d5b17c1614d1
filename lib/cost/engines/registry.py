"""Every draft setting of a serving engine by name: its form, the drafters that it can run, and how it is written.

The settings are those of late 2026: of vLLM 0.32, transformers 5.23, TensorRT-LLM 1.4, and SGLang, llama.cpp and EAGLE
of that time. What they have removed is not here.
"""

from dataclasses import dataclass
from typing import Callable, Mapping

from lib.cost.engines import writers
from lib.cost.engines.weights import FOLDER, GGUF
from lib.cost.engines.writers import CHAIN, DYNAMIC, Dynamic
from lib.trees.growth.candidates import Growth
from lib.trees.tree import Tree

Setting = Tree | Dynamic


@dataclass(frozen=True)
class Engine:
    """A setting of an engine: the form of draft that it can express, in a line of text.

    drafters: the kinds of drafter (see `lib.drafters.registry`) that it can run, each with its keywords of `write`.
    versions: of the engine, in words. reads: the form of the drafter's weights (see `weights`); empty for none.
    """

    form: str
    write: Callable[..., str]
    drafters: Mapping[str, Mapping[str, object]]
    versions: str
    reads: str = FOLDER

    def line(self, setting: Setting, drafter: str, place: str = "") -> str:
        """The setting as text, for a kind of drafter that it can run; place: of the drafter's weights, if any."""
        return self.write(setting, **({"model": place} if self.reads else {}), **self.drafters[drafter])

    def takes(self, tree: Tree) -> bool:
        """Whether it can draft a tree as it is; a tree that the engine grows by itself is never the same."""
        return self.form == CHAIN and tree.max_depth == tree.budget and not tree.rank.any()


EAGLES = ("eagle", "eagle3")
METHODS = {kind: {"method": kind} for kind in (*EAGLES, "medusa")}
ALGORITHMS = {kind: {"algorithm": kind.upper()} for kind in EAGLES}
SGLANG, LLAMA_CPP = "0.5.4 and later", "builds since May 2026"
BY_BATCH = "0.25 and later"  # of vLLM, with a schedule

ENGINES: dict[str, Engine] = {
    "transformers, look-up": Engine(CHAIN, writers.write_transformers_lookup, {"lookup": {}},
                                    "4.37 and later, batch 1", ""),
    "transformers": Engine(CHAIN, writers.write_transformers, {"model": {}}, "4.45 and later, batch 1"),
    "vLLM, chain": Engine(CHAIN, writers.write_vllm, {"model": {}, **METHODS}, "0.15 and later"),
    "vLLM, n-gram": Engine(CHAIN, writers.write_vllm_ngram, {"lookup": {}}, "0.8 and later", ""),
    "vLLM, suffix": Engine(CHAIN, writers.write_vllm_suffix, {"sam": {}}, "0.12 and later, with arctic-inference", ""),
    "SGLang, chain": Engine(CHAIN, writers.write_sglang, {"model": {}, **ALGORITHMS}, SGLANG),
    "SGLang, n-gram": Engine(CHAIN, writers.write_sglang_ngram, {"lookup": {}, "sam": {}}, f"{SGLANG}, on CUDA", ""),
    "SGLang, dynamic tree": Engine(DYNAMIC, writers.write_sglang_dynamic, ALGORITHMS, SGLANG),
    "llama.cpp": Engine(CHAIN, writers.write_llama_cpp, {"model": {}}, LLAMA_CPP, GGUF),
    "llama.cpp, n-gram": Engine(CHAIN, writers.write_llama_cpp_ngram, {"lookup": {}}, LLAMA_CPP, ""),
    "EAGLE-2, EAGLE-3": Engine(DYNAMIC, writers.write_eagle_dynamic,
                               {kind: {"use_eagle3": kind == "eagle3"} for kind in EAGLES}, "3.0.0"),
    "TensorRT-LLM, dynamic tree": Engine(DYNAMIC, writers.write_tensorrt_dynamic, {"eagle3": {}}, "1.3 and later"),
}
# The methods of vLLM that can have a schedule; suffix decoding chooses a length for each request by itself.
SCHEDULED = {"draft_model", *EAGLES, "ngram"}
SAME, CHAINED, GROWN = "the recommended tree", "the best chain", "as deep and as large, grown anew in each round"


def settings(drafter: str, tree: Tree | Growth, chain: Tree, places: Mapping[str, str]) -> list[dict[str, str]]:
    """What to set in each engine that can run a drafter, one dict each: engine, setting (a line of text), draft (what
    the setting drafts: the tree, the chain in its place, or a tree that the engine grows) and versions.

    drafter: a spec of `drafters.make`; engines name other kinds of drafter not at all. tree: also a growth rule; no
    engine chooses a budget in each round. chain: the drafter's best chain, for engines that cannot express the tree.
    places: of the drafter's weights by form (see `weights`): an engine that cannot read them is left out. Empty for
    plain decoding.
    """
    kind, rows = drafter.partition(":")[0], []
    for name, engine in ENGINES.items() if tree.budget else ():
        unread = engine.reads and engine.reads not in places
        if kind not in engine.drafters or unread or engine.form == DYNAMIC and hasattr(tree, "costs"):
            continue
        if engine.form == DYNAMIC:
            setting, draft = Dynamic.like(tree), GROWN
        else:
            same = isinstance(tree, Tree) and engine.takes(tree)
            setting, draft = (tree, SAME) if same else (chain, CHAINED)
        if draft != CHAINED or chain.budget:
            line = engine.line(setting, kind, places.get(engine.reads, ""))
            rows.append(dict(engine=name, setting=line, draft=draft, versions=engine.versions))
    return rows


def why_none(drafter: str) -> str:
    """Why no engine runs a drafter for which there are no settings, as a clause."""
    if any(drafter.partition(":")[0] in engine.drafters for engine in ENGINES.values()):
        return f"no checkpoint of {drafter} exists that an engine reads"
    return f"no engine runs {drafter}"
