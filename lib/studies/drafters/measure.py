"""The drafter study: every drafter with every shape, live, one request at a time, beside plain decoding."""

import random
from typing import Iterable, Iterator, Mapping, Sequence

import torch

from lib.decoding.loop import generate
from lib.decoding.plain import NoDrafter
from lib.decoding.records import Generation, Round
from lib.drafters import heads
from lib.drafters.registry import DRAFTERS, make, parse
from lib.replay.loops import loop_start
from lib.studies.drafters import footprint
from lib.trees import shapes

MODEL = "model "  # before the name of a language model that drafts
PLAIN, NO_SHAPE = "none", "root"  # decoding without a drafter, and the tree that it verifies
CONTROLS = ("random", "oracle")
STANDARD = ("top_k", "lookup", "lookup:frequent", "sam", "recycling", "merged", "early_exit:1", "int8",
            "combined", "adaptive:schedule", "adaptive:recent", "adaptive:complexity", "adaptive:pays", "confident",
            *CONTROLS)
COMPARED = ("top_k", "lookup")  # what every comparison stands beside, whoever else drafts
DEPTHS = 8  # depths of which acceptance is kept apart


def heads_of(target: str) -> list[str]:
    """The shipped heads of a target that the registry can load: KIND or KIND-NAME in data/models/heads/TARGET."""
    folder = heads.shipped(target, "")
    found = sorted(path.name for path in folder.iterdir()) if folder.is_dir() else []
    return [name for name in found if _head(name)]


def candidates(pairs: Sequence, specs: Sequence[str]) -> dict[str, tuple[str, dict]]:
    """What is compared on one target: label -> kind with its option, and the keywords that it needs.

    pairs: those of one target, their drafters' models in order of preference; specs: see `drafters.registry`, or
    names of shipped heads, beside COMPARED; empty: all that exist for such a target. "top_k" stands for every pair's
    model, "merged" for all of them in one, the other kinds that need a model take the first.
    """
    first = pairs[0]
    models = {pair.drafter_name: pair.draft_model for pair in pairs}
    shared = {"target": first.target, "model": next(iter(models.values())), "models": list(models.values()),
              "vocabulary": first.vocabulary}
    found: dict[str, tuple[str, dict]] = {}
    trained = heads_of(first.target_name)
    with_heads = [name for name, kind in DRAFTERS.items() if kind.head in trained and name not in trained]
    standard = [spec for spec in STANDARD if not DRAFTERS[parse(spec)[0]].refusal(first.target)]
    for spec in dict.fromkeys([*COMPARED, *specs] if specs else [*standard, *trained, *with_heads]):
        if spec == "top_k":
            found |= {f"{MODEL}{name}": (spec, shared | {"model": model}) for name, model in models.items()}
        elif _head(spec):
            kind, dash, variant = spec.partition("-")
            folder = heads.shipped(first.target_name, f"{_head(spec)}{dash}{variant}")
            found[spec] = (kind, shared | {"folder": folder})
        elif parse(spec)[0] != "merged" or len(models) > 1:
            found[spec] = (spec, shared)
    return found


def check(spec: str) -> None:
    """ValueError for a spec that is neither a drafter with its option nor the name of a head, whatever the target."""
    if not _head(spec):
        parse(spec)


def measure(pairs: Sequence, asked, specs: Sequence[str], shape_names: Sequence[str], *, new_tokens: int, seed: int,
            done: Iterable[tuple] = ()) -> Iterator[list[dict]]:
    """For each prompt the rows of the table `drafters`: plain decoding, then every drafter and shape in shuffled order.

    pairs: of one target. asked: names, kinds, ids (see `prompts.PromptSet`). done: (target, prompt) that are skipped.
    Each drafter and shape has a drafter of its own, which sees the prompts in their order.
    """
    target, eos = pairs[0].target, pairs[0].eos_token_ids
    kinds = candidates(pairs, specs)
    settings = [(label, shape) for label in kinds for shape in shape_names]
    kept: dict[tuple[str, str], object] = {}
    for name, kind, ids in zip(asked.names, asked.kinds, asked.ids):
        if (pairs[0].target_name, name) in done:
            continue
        about = {"target": pairs[0].target_name, "prompt": name, "kind": kind, "prompt_tokens": len(ids)}

        def run(drafter, shape) -> Generation:
            return generate(target, drafter, ids[None], shape=shape, max_new_tokens=new_tokens, eos_token_id=eos)

        plain = run(NoDrafter(), "chain:0")
        rows = _rows(plain, plain, NoDrafter(), target, about | {"drafter": PLAIN, "shape": NO_SHAPE, "budget": 0})
        for label, shape in random.Random(f"{seed}/{name}").sample(settings, len(settings)):
            drafter = _drafter(kept, label, shape, kinds[label], ids, plain.new_tokens, seed)
            setting = {"drafter": label, "shape": shape, "budget": shapes.parse(shape).budget}
            rows += _rows(run(drafter, shape), plain, drafter, target, about | setting)
        yield rows


def _head(spec: str) -> str:
    """The kind of head that a drafter reads: "eagle" of "eagle-wide" and of "sam_eagle:4"; empty without a head."""
    kind = spec.partition("-")[0].partition(":")[0]
    return DRAFTERS[kind].head if kind in DRAFTERS else ""


def _drafter(kept: dict, label: str, shape: str, how: tuple[str, Mapping], ids, continuations, seed: int):
    """The setting's drafter: the same for all prompts, but for controls, which are told each prompt's continuation."""
    kind, given = how
    if kind in CONTROLS:
        return make(kind, **given, prompts=[ids], continuations=continuations,
                    generator=torch.Generator().manual_seed(seed))
    if (label, shape) not in kept:
        kept[label, shape] = make(kind, **given)
    return kept[label, shape]


def _rows(done: Generation, plain: Generation, drafter, target, about: Mapping) -> list[dict]:
    """One row for the stretch before the output's first loop, and one for the loop, where there are rounds of it."""
    start = loop_start(done.new_tokens[0])
    memory = {"weight_bytes": footprint.own_weights(drafter, target), "held_bytes": footprint.held(drafter),
              "target_bytes": footprint.weights(target)}
    same = {"identical": done.new_tokens == plain.new_tokens}
    stretches = {"before": [], "loop": []}
    for found in done.rounds:
        stretches["loop" if found.position - 1 >= start else "before"].append(found)
    return [{**about, "stretch": stretch, **_sums(rounds), **memory, **same}
            for stretch, rounds in stretches.items() if rounds]


def _sums(rounds: Sequence[Round]) -> dict:
    """Counts and milliseconds of the rounds that were not cut, and their acceptance by depth."""
    full = [found for found in rounds if not found.cut]
    total = {name: sum(getattr(found, name) for found in full) for name in ("drafted", "accepted", "draft_calls")}
    times = {f"{what}_ms": 1000 * sum(getattr(found, f"{what}_seconds") for found in full)
             for what in ("draft", "verify", "commit")}
    by_depth = {}
    for depth in range(1, DEPTHS + 1):
        by_depth[f"reached_{depth}"] = sum(
            found.accepted >= depth or (found.accepted == depth - 1 and found.open_end) for found in full)
        by_depth[f"accepted_{depth}"] = sum(found.accepted >= depth for found in full)
    return {"rounds": len(full), "cut": len(rounds) - len(full), **total, "tokens": total["accepted"] + len(full),
            **times, **by_depth}
