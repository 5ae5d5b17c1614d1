"""Draft settings as serving engines take them, each a line of text: which engines run a drafter, and where they find
its weights.

The settings are those of late 2026: of vLLM 0.32, transformers 5.23, TensorRT-LLM 1.4, and SGLang, llama.cpp and EAGLE
of that time. What they have removed is not here: no engine takes a static tree that branches.
"""

import json
import re
from collections.abc import Mapping, Sequence
from pathlib import Path

from lib.engines import llama_cpp, openvino, transformers, vllm
from lib.engines.writer import CHAIN, DYNAMIC, FOLDER, GGUF, Dynamic, Writer
from lib.models.registry import SHIPPED
from lib.trees.growth import Growth
from lib.trees.tree import Tree

HUB_ID = r"[\w.-]+(/[\w.-]+)?"
SAME, CHAINED, GROWN = "the recommended tree", "the best chain", "as deep and as large, grown anew in each round"


def is_chain(shape: Tree | Growth) -> bool:
    """Whether a shape is a static path of rank-0 nodes."""
    return isinstance(shape, Tree) and shape.is_path and not shape.rank.any()


# SGLang's number of draft tokens counts the root. Top-k 1 is a chain, more is EAGLE-2's dynamic tree.
STEPS, TOP_K, TOKENS = "speculative-num-steps", "speculative-eagle-topk", "speculative-num-draft-tokens"
SGLANG_LINE = ("--speculative-algorithm {algorithm} --speculative-draft-model-path {quoted} "
               f"--{STEPS} {{steps}} --{TOP_K} {{top_k}} --{TOKENS} {{with_root}}")
ALGORITHMS = {"eagle3": {"algorithm": "EAGLE3"}}
SGLANG, SGLANG_CHAIN = "0.5.4 and later; not run here", "SGLang, chain"
# An EAGLE chain, of which the adaptive mode takes other numbers of steps at other batch sizes, 0 among them.
ADAPTABLE = rf"(.*algorithm EAGLE3 .*) --{STEPS} \d+ --{TOP_K} 1 --{TOKENS} (\d+)"
ADAPTIVE = "adaptive.json"  # the file of its schedule

ENGINES: dict[str, Writer] = {
    **transformers.WRITERS,
    **vllm.WRITERS,
    SGLANG_CHAIN: Writer(CHAIN, SGLANG_LINE, {"model": {"algorithm": "STANDALONE"}, **ALGORITHMS}, SGLANG),
    "SGLang, n-gram": Writer(
        CHAIN, f"--speculative-algorithm NGRAM --{TOKENS} {{with_root}} --speculative-ngram-max-bfs-breadth 1",
        {"lookup": {}, "sam": {}}, f"{SGLANG}, on CUDA", ""),
    "SGLang, dynamic tree": Writer(DYNAMIC, SGLANG_LINE, ALGORITHMS, SGLANG),
    **llama_cpp.WRITERS,
    **openvino.WRITERS,
    # `total_token` counts the root, `depth` the levels after the first.
    "EAGLE-2, EAGLE-3": Writer(
        DYNAMIC, "EaModel.from_pretrained(use_eagle3={use_eagle3}, ea_model_path={model!r}, total_token={with_root}, "
        "depth={later}, top_k={top_k})", {"eagle3": {"use_eagle3": True}},
        "3.0.0; not run here"),
    # `max_total_draft_tokens` leaves out the root, and may be as many as the steps times the top-k.
    "TensorRT-LLM, dynamic tree": Writer(
        DYNAMIC, "Eagle3DecodingConfig(max_draft_len={steps}, max_total_draft_tokens={nodes}, "
        "speculative_model={model!r}, use_dynamic_tree=True, dynamic_tree_max_topK={room})",
        {"eagle3": {}}, "1.3 and later; not run here"),
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


def scheduled(by_batch: Mapping[int, Sequence[Mapping[str, str]] | None]) -> dict[int, list[Mapping[str, str]]]:
    """Rows of `settings` by batch size, None for plain decoding, with a schedule over batch sizes where an engine takes
    one: see `vllm.scheduled`; SGLang's takes the steps of the largest batch size that it names and that is reached.
    """
    rows, found = vllm.scheduled(by_batch), {}
    for batch, lines in rows.items():
        for at, line in enumerate(lines):
            match = line.get("engine") == SGLANG_CHAIN and re.fullmatch(ADAPTABLE, line["setting"])
            if match:
                found.setdefault(match[1], {})[batch] = at, int(match[2]) - 1
    for head, places_of in found.items():
        lengths = {batch: length for batch, (_, length) in places_of.items()}
        lengths |= {batch: 0 for batch, lines in by_batch.items() if lines is None}
        if len(set(lengths.values())) > 1:
            steps = {str(first): {"candidate_steps": [length]}
                     for first, _, length in vllm.ranges(lengths, sorted(by_batch))}
            most = max(lengths.values())
            setting = (f"{head} --{STEPS} {most} --{TOP_K} 1 --{TOKENS} {most + 1} --speculative-adaptive "
                       f"--speculative-adaptive-config {ADAPTIVE}  # which holds {json.dumps(steps)}")
            for batch, (at, _) in places_of.items():
                rows[batch][at] = {**rows[batch][at], "setting": setting,
                                   "versions": "of mid-2026 and later; not run here"}
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
