"""The drafter study: every drafter with every shape, live, one request at a time, beside plain decoding; and the memory
that a drafter needs beside its target.
"""

import random
import sys
import time
from itertools import chain
from typing import Callable, Iterable, Iterator, Mapping, Sequence

import numpy as np
import torch
from torch import nn

from lib.cost.candidates import EXITS, growth_rules
from lib.decoding.loop import generate
from lib.decoding.records import Generation
from lib.drafters import vocabulary
from lib.drafters.drafter import NoDrafter
from lib.drafters.heads.layers import CachedLayers
from lib.drafters.heads.store import folder_of, made_for
from lib.drafters.registry import DRAFTERS, make, needs_draft_model, parse
from lib.models.fused import copied_bytes
from lib.models.packed import packed_bytes
from lib.replay.acceptance import tally
from lib.replay.trace import loop_start
from lib.trees.growth.registry import shape_or_growth

MODEL = "model "  # before the name of a language model that drafts
PLAIN, NO_SHAPE = "none", "root"  # decoding without a drafter, and the tree that it verifies
CONTROLS = ("random", "oracle")
STANDARD = ("model", "lookup", "lookup:frequent", "sam", "recycling", "merged", "early_exit", "int8", "combined",
            "adaptive:schedule", "adaptive:complexity", "adaptive:pays", "confident", *CONTROLS)
COMPARED = ("model", "lookup")  # in every comparison, whatever else drafts
DEEPEST = 8  # levels of grown trees
SILENCE = 10.0  # seconds between two lines of progress
HOLDERS = nn.Module, CachedLayers  # objects that hold weights, of which the attributes are not counted


def heads_of(target: str) -> list[str]:
    """The heads of a target that the registry can load, which ship or were made here: KIND or KIND-NAME."""
    return [name for name in made_for(target) if _head(name)]


def candidates(pairs: Sequence, specs: Sequence[str]) -> dict[str, tuple]:
    """The drafters compared on one target: label -> kind with its option, pair and options, as `make` takes them.

    pairs: of one target, in order of preference. specs: see `drafters.registry`, or names of heads, in addition
    to COMPARED; empty: all that exist for the target, early exit after one layer in EXITS. "model" stands for the draft
    model of every pair, "merged" for all of them in one; the other kinds that need a draft model take the first, and
    are left out where no pair has one.
    """
    first, drafters = pairs[0], {}
    by_model = {pair.drafter_name: pair for pair in pairs if pair.draft_model is not None}
    trained = heads_of(first.target_name)
    standard = [spec for spec in STANDARD if not DRAFTERS[parse(spec)[0]].drafter.refusal(first.target)]
    standard += [f"model:vocabulary={vocabulary.REDUCED}"] if vocabulary.ships(first.target_name) else []
    for spec in dict.fromkeys([*COMPARED, *specs] if specs else [*standard, *trained]):
        if spec == "model":
            drafters |= {f"{MODEL}{name}": (spec, pair, {}) for name, pair in by_model.items()}
        elif _head(spec):
            kind, dash, variant = spec.partition("-")
            drafters[spec] = kind, first, {"folder": folder_of(first.target_name, f"{_head(spec)}{dash}{variant}")}
        elif spec == "merged":
            if len(by_model) > 1:
                drafters[spec] = spec, first, {"models": [pair.draft_model for pair in by_model.values()]}
        elif needs_draft_model(spec):
            drafters |= {spec: (spec, pair, {}) for pair in list(by_model.values())[:1]}
        else:
            spec = f"{spec}:{max(1, len(first.target.model.layers) // EXITS)}" if spec == "early_exit" else spec
            drafters[spec] = spec, first, {}
    return drafters


def check(spec: str) -> None:
    """ValueError for a spec that is neither a drafter with its option nor the name of a head, for any target."""
    if not _head(spec):
        parse(spec)


def measure(pairs: Sequence, prompts, specs: Sequence[str], shape_names: Sequence[str], *, new_tokens: int, seed: int,
            grown: Sequence[int] = (), done: Iterable[tuple] = (),
            report: Callable[[str], None] = print) -> Iterator[list[dict]]:
    """For each prompt the rows of the table `drafters`: plain decoding, then every drafter and shape in shuffled order.

    pairs: of one target. prompts: with names, kinds, ids (see `prompts.PromptSet`). grown: budgets at which drafters
    that can grow trees also do. done: (target, prompt) to skip.
    Each setting has a drafter of its own, which sees the prompts in their order; one that remembers earlier prompts
    decodes skipped prompts too, so that a resumed run gives the rows of one that was not stopped. report: gets a line
    of progress at most every SILENCE seconds.
    """
    target, eos = pairs[0].target, pairs[0].eos_token_ids
    drafters = candidates(pairs, specs)
    kept: dict[tuple[str, str], object] = {}
    settings = [(label, shape) for label, own in drafters.items()
                for shape in [*shape_names, *grown_names(kept, label, shape_names[0], own, grown)]]
    spoken = time.monotonic()
    for place, (name, kind, ids) in enumerate(zip(prompts.names, prompts.kinds, prompts.ids)):
        if time.monotonic() - spoken > SILENCE:
            spoken = time.monotonic()
            report(f"{pairs[0].target_name}: {place} of {len(prompts.names)} prompts decoded, {len(settings)} settings")
        about = {"target": pairs[0].target_name, "dtype": pairs[0].dtype, "prompt": name, "kind": kind,
                 "prompt_tokens": len(ids)}

        def run(drafter, shape) -> Generation:
            return generate(target, drafter, ids[None], shape=shape, max_new_tokens=new_tokens, eos_token_id=eos)

        if (pairs[0].target_name, name) in done:
            for label, shape in settings:
                if drafters[label][0] not in CONTROLS:
                    drafter = _drafter(kept, label, shape, *drafters[label], ids, [], seed)
                    if drafter.remembers:
                        run(drafter, shape)
            continue
        plain = run(NoDrafter(), "chain:0")
        rows = _rows(plain, plain, NoDrafter(), target, about | {"drafter": PLAIN, "shape": NO_SHAPE, "budget": 0})
        for label, shape in random.Random(f"{seed}/{name}").sample(settings, len(settings)):
            drafter = _drafter(kept, label, shape, *drafters[label], ids, plain.new_tokens, seed)
            setting = {"drafter": label, "shape": shape, "budget": shape_or_growth(shape).budget}
            rows += _rows(run(drafter, shape), plain, drafter, target, about | setting)
        yield rows


def grown_names(kept: dict, label: str, shape: str, made_of: tuple, budgets: Sequence[int]) -> list[str]:
    """The drafter's own growth rule at these budgets; none where it has none, or where it is a control. kept, shape:
    the drafters so far, among which this one stands afterwards as that of a shape.
    """
    if made_of[0] in CONTROLS or not budgets:
        return []
    drafter = _drafter(kept, label, shape, *made_of, [], [], 0)
    rule = next(iter(growth_rules(drafter, DEEPEST)), "")
    return [f"{rule}@{budget}" for budget in budgets if rule]


def _head(spec: str) -> str:
    """The kind of head that a drafter reads: "eagle" of "eagle-wide"; empty without a head."""
    kind = spec.partition("-")[0].partition(":")[0]
    return DRAFTERS[kind].drafter.head_kind if kind in DRAFTERS else ""


def _drafter(kept: dict, label: str, shape: str, spec: str, pair, options: Mapping, ids, continuations, seed: int):
    """The setting's drafter, the same for all prompts; controls are made anew for each prompt."""
    if spec in CONTROLS:
        known = {"prompts": [ids], "continuations": continuations} if spec == "oracle" else {}
        return make(spec, pair, **known, generator=torch.Generator().manual_seed(seed))
    if (label, shape) not in kept:
        kept[label, shape] = make(spec, pair, **options)
    return kept[label, shape]


def _rows(done: Generation, plain: Generation, drafter, target, about: Mapping) -> list[dict]:
    """One row for the stretch before the output's first loop, and one for the loop, where they have rounds."""
    def of(name: str) -> np.ndarray:
        return np.array([getattr(record, name) for record in done.rounds])

    counts = {name: of(name) for name in ("drafted", "accepted", "draft_calls")}
    counts |= {f"{part}_ms": 1000 * of(f"{part}_seconds").astype(float) for part in ("draft", "verify", "commit")}
    looped = of("position") - 1 >= loop_start(done.new_tokens[0])
    sums = tally([about["prompt"]], [about["kind"]], np.zeros(len(done.rounds), int), looped, **counts)
    memory = {"weight_bytes": own_weights(drafter, target), "held_bytes": held(drafter),
              "target_bytes": weights(target)}
    return sums.assign(**{**about, **memory}, tokens=sums["accepted"] + sums["rounds"],
                       identical=done.new_tokens == plain.new_tokens).to_dict("records")


# -------------------------------------------------------------------------------------------------------------- memory


def own_weights(drafter, target: nn.Module) -> int:
    """Bytes of the drafter's parameters and buffers that are not the target's, and of its copies of weights."""
    shared = {tensor.data_ptr() for tensor in _tensors(target)}
    reached = list(_reach(drafter))
    modules = [module for module in reached if isinstance(module, nn.Module) and module is not target]
    copied = sum(layers.copied_bytes for layers in reached if isinstance(layers, CachedLayers))
    own = {tensor.data_ptr(): tensor.nbytes for module in modules for tensor in _tensors(module)
           if tensor.data_ptr() not in shared}
    return copied + sum(own.values()) + sum(copied_bytes(module) + packed_bytes(module) for module in modules)


def weights(model: nn.Module) -> int:
    """Bytes of a model's parameters and buffers, and of copies of weights that its fused blocks hold."""
    return sum({tensor.data_ptr(): tensor.nbytes for tensor in _tensors(model)}.values()) + copied_bytes(model)


def held(drafter) -> int:
    """Bytes of everything else that the drafter refers to: caches, texts, tables, the last drafts.

    Single numbers do not count: whether two counters are one object in memory depends on how far they have counted.
    """
    reached = [thing for thing in _reach(drafter) if not isinstance(thing, HOLDERS)]
    storages = {thing.untyped_storage().data_ptr(): thing.untyped_storage().nbytes()
                for thing in reached if isinstance(thing, torch.Tensor)}
    others = (thing for thing in reached if not isinstance(thing, torch.Tensor))
    return sum(storages.values()) + sum(map(sys.getsizeof, others))


def _tensors(module: nn.Module) -> Iterator[torch.Tensor]:
    yield from module.parameters()
    yield from module.buffers()


def _reach(start) -> Iterator:
    """The object and all that its containers and attributes refer to, each once and without single numbers; modules and
    tensors are leaves.
    """
    seen, waiting = set(), [start]
    while waiting:
        here = waiting.pop()
        if id(here) in seen or isinstance(here, type) or callable(here) and not isinstance(here, HOLDERS):
            continue
        seen.add(id(here))
        yield here
        if isinstance(here, (*HOLDERS, torch.Tensor, str, bytes)):
            continue
        if isinstance(here, dict):
            below = chain(here.keys(), here.values())
        else:
            below = here if isinstance(here, (list, tuple, set, frozenset)) else getattr(here, "__dict__", {}).values()
        waiting += (thing for thing in below if not isinstance(thing, (int, float)))  # tables hold millions of them
