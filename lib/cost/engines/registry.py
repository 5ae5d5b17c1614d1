"""Every setting that an engine takes, by name: its form, how it is written and read, and what it is for."""

from dataclasses import dataclass, field
from typing import Callable, Mapping

from lib.cost.engines import assisted, eagle, llama_cpp, medusa, sglang, tensorrt_llm, vllm
from lib.cost.engines.forms import ANY_RANK, CHAIN, DYNAMIC, LEVELS, TREE, Dynamic
from lib.trees.tree import Tree

Setting = Tree | Dynamic


@dataclass(frozen=True)
class Engine:
    """A setting of an engine: what form of draft it can express, in a line of text.

    most_rank: ranks from there on do not exist for it. by_head: keywords of `write` by the kind of trained head that
    drafts, where the line names it; others write what is for a language model.
    """

    form: str
    write: Callable[..., str]
    read: Callable[[str], Setting]
    note: str
    most_rank: int = ANY_RANK
    by_head: Mapping[str, Mapping[str, str]] = field(default_factory=dict)

    def line(self, setting: Setting, drafter: str = "") -> str:
        """The setting as text; drafter: who drafts, of which the kinds of `by_head` are told apart."""
        return self.write(setting, **self.by_head.get(drafter, {}))


EAGLES = ("eagle", "eagle3")
METHODS = {kind: {"method": kind} for kind in (*EAGLES, "medusa")}
ALGORITHMS = {kind: {"algorithm": kind.upper()} for kind in EAGLES}

ENGINES: dict[str, Engine] = {
    "Medusa": Engine(TREE, medusa.write, medusa.read, "heads of its own; no deeper than it has heads",
                     medusa.MOST_RANK),
    "EAGLE-1": Engine(TREE, eagle.write, eagle.read, "a head of its own", eagle.MOST_RANK),
    "EAGLE-2, EAGLE-3": Engine(DYNAMIC, eagle.write_dynamic, eagle.read_dynamic, "a head of its own"),
    "vLLM, chain": Engine(CHAIN, vllm.write, vllm.read, "any drafter of its list of methods",
                          by_head=METHODS),
    "vLLM, token tree": Engine(LEVELS, vllm.write_tree, vllm.read_tree,
                               "EAGLE drafters, versions with tree attention (until May 2026)",
                               by_head={kind: METHODS[kind] for kind in EAGLES}),
    "SGLang, chain": Engine(CHAIN, sglang.write, sglang.read, "top-k 1", by_head=ALGORITHMS),
    "SGLang, dynamic tree": Engine(DYNAMIC, sglang.write_dynamic, sglang.read_dynamic, "top-k above 1",
                                   by_head=ALGORITHMS),
    "TensorRT-LLM, Medusa": Engine(TREE, tensorrt_llm.write_medusa, tensorrt_llm.read,
                                   "heads of its own; versions with an engine backend (until mid-2026)",
                                   tensorrt_llm.MOST_RANK),
    "TensorRT-LLM, EAGLE": Engine(TREE, tensorrt_llm.write_eagle, tensorrt_llm.read, "versions until 1.3",
                                  tensorrt_llm.MOST_RANK),
    "TensorRT-LLM, dynamic tree": Engine(DYNAMIC, tensorrt_llm.write_dynamic, tensorrt_llm.read_dynamic,
                                         "EAGLE-3 drafters"),
    "transformers": Engine(CHAIN, assisted.write, assisted.read, "batch 1"),
    "llama.cpp": Engine(CHAIN, llama_cpp.write, llama_cpp.read, "any drafter of the same vocabulary",
                        by_head={"eagle3": {"kind": "draft-eagle3"}}),
}
