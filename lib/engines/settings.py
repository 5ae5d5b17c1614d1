"""Draft settings as serving engines take them, each a line of text: which engines run a drafter, where they find its
weights, and one setting of vLLM for all batch sizes.

The settings are those of late 2026: of vLLM 0.32, transformers 5.23, TensorRT-LLM 1.4, and SGLang, llama.cpp and EAGLE
of that time. What they have removed is not here: no engine takes a static tree that branches.
"""

import json
import re
import shlex
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from lib.engines import llama_cpp
from lib.engines.llama_cpp import LONGEST
from lib.models.registry import SHIPPED
from lib.trees.growth.candidates import Growth
from lib.trees.tree import Tree

CHAIN, DYNAMIC = "chain", "dynamic tree"  # the forms of draft that engines know
FOLDER, GGUF = "folder or hub id", "GGUF file"  # the forms of weights that they read
HUB_ID = r"[\w.-]+(/[\w.-]+)?"
SAME, CHAINED, GROWN = "the recommended tree", "the best chain", "as deep and as large, grown anew in each round"
Line = Mapping[str, str]


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
            return cls(tree.max_depth, getattr(tree, "most", tree.width), tree.budget)
        families, inner = np.bincount(tree.parents[1:]), np.unique(tree.parents[1:])
        return cls(tree.max_depth, int(max(families.max(), np.bincount(tree.depth[inner]).max())), tree.budget)


@dataclass(frozen=True)
class Engine:
    """A setting of an engine: the form of draft that it can express, as a line of text.

    template: the line, with the fields of `line` in braces; of vLLM the further keys of its option, which is JSON.
    drafters: the kinds of drafter (see `lib.drafters.registry`) that it can run, each with fields of its own. versions:
    of the engine, in words. reads: the form of the drafter's weights; empty for none.
    """

    form: str
    template: str | Mapping[str, object]
    drafters: Mapping[str, Mapping[str, object]]
    versions: str
    reads: str = FOLDER

    def line(self, setting: Tree | Dynamic, drafter: str, place: str = "") -> str:
        """The setting as text, for a kind of drafter that it can run: a chain, or of a dynamic form a dynamic tree.

        place: of the drafter's weights, if any.
        """
        if self.form == CHAIN:
            setting = Dynamic(setting.budget, 1, setting.budget)
        more = self.drafters[drafter]
        if not isinstance(self.template, str):
            model = {"model": place} if self.reads else {}
            return config_line({"method": more["method"], **model, NUM_TOKENS: setting.nodes, **self.template})
        room = max(setting.top_k, -(-setting.nodes // setting.steps))  # a top-k of each level that holds all nodes
        return self.template.format(
            model=place, quoted=shlex.quote(place), longest=LONGEST, matched=min(LONGEST, setting.nodes),
            steps=setting.steps, later=setting.steps - 1, top_k=setting.top_k, room=room, nodes=setting.nodes,
            with_root=setting.nodes + 1, **more)


def is_chain(shape: Tree | Growth) -> bool:
    """Whether a shape is a static path of rank-0 nodes."""
    return isinstance(shape, Tree) and shape.max_depth == shape.budget and not shape.rank.any()


# vLLM takes a chain by `num_speculative_tokens`; with a schedule, a list of [first batch, last batch, tokens], both
# ends inclusive and the first from 1 on, the number depends on the batch size. Suffix decoding chooses a length for
# each request by itself, and has no schedule.
CONFIG, NUM_TOKENS, SCHEDULE = "speculative-config", "num_speculative_tokens", "num_speculative_tokens_per_batch_size"
SCHEDULED, BY_BATCH = {"draft_model", "eagle", "eagle3", "ngram"}, "0.25 and later"
# SGLang's number of draft tokens counts the root. Top-k 1 is a chain, more is EAGLE-2's dynamic tree.
STEPS, TOP_K, TOKENS = "speculative-num-steps", "speculative-eagle-topk", "speculative-num-draft-tokens"
SGLANG_LINE = ("--speculative-algorithm {algorithm} --speculative-draft-model-path {quoted} "
               f"--{STEPS} {{steps}} --{TOP_K} {{top_k}} --{TOKENS} {{with_root}}")
EAGLES = ("eagle", "eagle3")
ALGORITHMS = {kind: {"algorithm": kind.upper()} for kind in EAGLES}
SGLANG = "0.5.4 and later"

ENGINES: dict[str, Engine] = {
    "transformers, look-up": Engine(
        CHAIN, "model.generate(**inputs, prompt_lookup_num_tokens={nodes}, max_matching_ngram_size={longest})",
        {"lookup": {}}, "4.37 and later, batch 1", ""),
    # With another schedule, or a threshold above 0, the drafter stops and adapts on its own.
    "transformers": Engine(
        CHAIN, "assistant_model = AutoModelForCausalLM.from_pretrained({model!r}); "
        "assistant_model.generation_config.update(num_assistant_tokens={nodes}, "
        'num_assistant_tokens_schedule="constant", assistant_confidence_threshold=0.0)',
        {"model": {}}, "4.45 and later, batch 1"),
    "vLLM, chain": Engine(
        CHAIN, {}, {"model": {"method": "draft_model"}, **{kind: {"method": kind} for kind in (*EAGLES, "medusa")}},
        "0.15 and later"),
    "vLLM, n-gram": Engine(CHAIN, {"prompt_lookup_max": LONGEST, "prompt_lookup_min": 1},
                           {"lookup": {"method": "ngram"}}, "0.8 and later", ""),
    # Without Arctic's memory of earlier requests.
    "vLLM, suffix": Engine(CHAIN, {"suffix_decoding_max_cached_requests": 0}, {"sam": {"method": "suffix"}},
                           "0.12 and later, with arctic-inference", ""),
    "SGLang, chain": Engine(CHAIN, SGLANG_LINE, {"model": {"algorithm": "STANDALONE"}, **ALGORITHMS}, SGLANG),
    "SGLang, n-gram": Engine(
        CHAIN, f"--speculative-algorithm NGRAM --{TOKENS} {{with_root}} --speculative-ngram-max-bfs-breadth 1",
        {"lookup": {}, "sam": {}}, f"{SGLANG}, on CUDA", ""),
    "SGLang, dynamic tree": Engine(DYNAMIC, SGLANG_LINE, ALGORITHMS, SGLANG),
    "llama.cpp": Engine(CHAIN, llama_cpp.METHODS["draft-simple"], {"model": {}}, llama_cpp.BUILDS, GGUF),
    "llama.cpp, n-gram": Engine(CHAIN, llama_cpp.METHODS["ngram-simple"], {"lookup": {}}, llama_cpp.BUILDS, ""),
    # `total_token` counts the root, `depth` the levels after the first.
    "EAGLE-2, EAGLE-3": Engine(
        DYNAMIC, "EaModel.from_pretrained(use_eagle3={use_eagle3}, ea_model_path={model!r}, total_token={with_root}, "
        "depth={later}, top_k={top_k})", {kind: {"use_eagle3": kind == "eagle3"} for kind in EAGLES}, "3.0.0"),
    # `max_total_draft_tokens` leaves out the root, and may be as many as the steps times the top-k.
    "TensorRT-LLM, dynamic tree": Engine(
        DYNAMIC, "Eagle3DecodingConfig(max_draft_len={steps}, max_total_draft_tokens={nodes}, "
        "speculative_model={model!r}, use_dynamic_tree=True, dynamic_tree_max_topK={room})",
        {"eagle3": {}}, "1.3 and later"),
}


def settings(drafter: str, tree: Tree | Growth, chain: Tree, places: Mapping[str, str]) -> list[dict[str, str]]:
    """What to set in each engine that can run a drafter, one dict each: engine, setting (a line of text), draft (what
    the setting drafts: the tree, the chain in its place, or a tree that the engine grows) and versions.

    drafter: a spec of `drafters.make`; engines name other kinds of drafter not at all. tree: also a growth rule; no
    engine chooses a budget in each round. chain: the drafter's best chain, for engines that cannot express the tree.
    places: of the drafter's weights by form: an engine that cannot read them is left out. Empty for plain decoding.
    """
    kind, rows = drafter.partition(":")[0], []
    for name, engine in ENGINES.items() if tree.budget else ():
        unread = engine.reads and engine.reads not in places
        if kind not in engine.drafters or unread or engine.form == DYNAMIC and hasattr(tree, "costs"):
            continue
        setting, draft = ((Dynamic.like(tree), GROWN) if engine.form == DYNAMIC else
                          (tree, SAME) if is_chain(tree) else (chain, CHAINED))
        if draft != CHAINED or chain.budget:
            line = engine.line(setting, kind, places.get(engine.reads, ""))
            rows.append(dict(engine=name, setting=line, draft=draft, versions=engine.versions))
    return rows


def why_none(drafter: str) -> str:
    """Why no engine runs a drafter for which there are no settings, as a clause."""
    if any(drafter.partition(":")[0] in engine.drafters for engine in ENGINES.values()):
        return f"no checkpoint of {drafter} exists that an engine reads"
    return f"no engine runs {drafter}"


def places(entrant) -> dict[str, str]:
    """The places of the weights that a `candidates.Entrant` drafts with, by the form in which engines read them, of a
    model that ships from the repository's root on.

    Empty where no engine reads them: a model that was made in memory, and a head in this project's own format, whose
    configuration has its kind.
    """
    if entrant.spec.partition(":")[0] == "model":
        model = entrant.pair.draft_model
        known = {FOLDER: model.name_or_path, GGUF: getattr(model, "gguf_file", "")}
    else:
        head = getattr(entrant.drafter, "head", None)
        known = {FOLDER: entrant.drafter.name_or_path} if head and not hasattr(head.config, "kind") else {}
    root = SHIPPED.parents[1]
    return {form: str(Path(place).relative_to(root)) if Path(place).is_relative_to(root) else place
            for form, place in known.items() if place and (Path(place).exists() or re.fullmatch(HUB_ID, place))}


def config_line(config: Mapping[str, object]) -> str:
    """vLLM's option with these settings."""
    return f"--{CONFIG} {shlex.quote(json.dumps(config))}"


def scheduled(by_batch: Mapping[int, Sequence[Line] | None]) -> dict[int, list[Line]]:
    """Rows of `settings` by batch size, None for plain decoding; of vLLM those with a schedule in their place.

    A batch size stands for those up to the next one that was measured. Where the same method has other lengths at other
    batch sizes, or where plain decoding is recommended, its row at each batch size gives the length at all of them. A
    batch size with another method is left out: vLLM then keeps the length of the next smaller one.
    """
    rows = {batch: list(lines or ()) for batch, lines in by_batch.items()}

    def configs() -> Iterator[tuple[int, int, dict, str]]:
        """Batch size, index and settings of each row that can have a schedule, and the settings without length."""
        for batch, lines in rows.items():
            for at, line in enumerate(lines):
                option, _, text = line["setting"].partition(" ")
                config = json.loads(shlex.split(text)[0]) if option == f"--{CONFIG}" else {}
                if config.get("method") in SCHEDULED:
                    yield batch, at, config, str({key: config[key] for key in config if key != NUM_TOKENS})

    methods: dict[str, dict[int, int]] = {}
    for batch, _, config, method in configs():
        methods.setdefault(method, {})[batch] = config[NUM_TOKENS]
    plain = {batch: 0 for batch, lines in by_batch.items() if lines is None}
    for batch, at, config, method in list(configs()):
        lengths = methods[method] | plain
        if len(set(lengths.values())) > 1:
            config |= {NUM_TOKENS: max(lengths.values()), SCHEDULE: ranges(lengths, sorted(by_batch))}
            rows[batch][at] = {**rows[batch][at], "setting": config_line(config), "versions": BY_BATCH}
    return rows


def ranges(lengths: Mapping[int, int], batches: Sequence[int]) -> list[list[int]]:
    """[first batch, last batch, tokens] in ascending order, both ends inclusive, the first from 1 on. lengths: by some
    of the batch sizes, which ascend.
    """
    schedule: list[list[int]] = []
    for first, following in zip(batches, [*batches[1:], batches[-1] + 1]):
        if first in lengths and schedule and schedule[-1][1:] == [first - 1, lengths[first]]:
            schedule[-1][1] = following - 1
        elif first in lengths:
            schedule.append([first if schedule else 1, following - 1, lengths[first]])
    return schedule
