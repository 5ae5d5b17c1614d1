"""Drafters decoded live: every drafter with every shape, greedily, one request at a time, beside plain decoding."""

import random
import sys
from collections.abc import Iterator, Mapping, Sequence

import numpy as np
import pandas as pd
import torch
from torch import nn
from tqdm import tqdm

from lib.attention.registration import takes_chains
from lib.cost.candidates import growth_rules
from lib.decoding.checks import SHORT_CHAIN, checkable, window_refusal
from lib.decoding.loop import generate
from lib.decoding.records import Generation
from lib.drafters import vocabulary
from lib.drafters.drafter import Drafter, NoDrafter, Wrapper
from lib.drafters.registry import folder_of, made_for
from lib.drafters.registry import DRAFT_MODEL, DRAFTERS, FOLDER, make, needs, parse
from lib.forward.load import load_pairs
from lib.lab.chapter import Store
from lib.models import prompts as prompt_files
from lib.replay.acceptance import tally
from lib.replay.trace import loop_start
from lib.trees import named

MODEL = "model "  # before the name of a language model that drafts
PLAIN, NO_SHAPE = "none", "root"  # decoding without a drafter, and the tree that it verifies
OF_MODELS = ("merged", "choosing")  # drafters of the draft models of all pairs
COMPARED = ("model", "lookup")  # in every comparison, whatever else drafts
DEEPEST = 8  # levels of grown trees
SECONDS = 10.0  # between two lines of progress


def measure(store: Store, *, pairs: Sequence[str], drafters: Sequence[str], other_drafters: Sequence[str],
            shapes: Sequence[str], grown: Sequence[int], prompts: str, judge_prompts: int, new_tokens: int, dtype: str,
            device: str, seed: int) -> None:
    """Writes the table "drafters", all rows of a prompt together, and "head_curves" where the first target has heads
    with a record of their training.

    pairs: names; the first target is decoded with `drafters` (see `competing`), the others with
    `other_drafters`. shapes: names of static shapes; grown: budgets at which drafters that can grow trees also do.
    judge_prompts: of each kind. new_tokens: of a continuation.
    """
    loaded = load_pairs(pairs, dtype=dtype, device=device)
    by_target: dict[str, list] = {}
    for pair in loaded:
        by_target.setdefault(pair.target_name, []).append(pair)
    first = loaded[0].target_name
    shapes = [shape for shape in shapes if all(checkable(pair.target, [shape]) == [shape] for pair in loaded)]
    shapes = shapes or [SHORT_CHAIN]
    grown = grown if not any(takes_chains(pair.target.config) for pair in loaded) else ()
    deepest = max(named(shape).max_depth for shape in shapes)
    table = store.open("drafters")
    done = {(target, prompt) for target, _, _, prompt, _ in table.keys()}
    for target, group in by_target.items():
        windows = [pair.window for pair in group if pair.window]
        texts = prompt_files.load(prompts, group[0].tokenizer, first=judge_prompts,
                                  limit=min(windows) - new_tokens - deepest - 1 if windows else None)
        for rows in decoded(group, texts, drafters if target == first else other_drafters, shapes, grown=grown,
                            new_tokens=new_tokens, seed=seed, done=done):
            table.extend(rows)
    curves = {name: folder_of(first, name) / "curve.csv" for name in heads_of(first)}
    points = [pd.read_csv(path).assign(target=first, head=name) for name, path in curves.items() if path.exists()]
    if points:
        store.write("head_curves", pd.concat(points))


def heads_of(target: str) -> list[str]:
    """The heads of a target that the registry can load, which ship or were made here: KIND or KIND-NAME."""
    return [name for name in made_for(target) if _head(name)]


def _head(spec: str) -> str:
    """The kind of head that a drafter reads: "eagle3" of "eagle3-wide"; empty without a head."""
    kind = spec.partition("-")[0].partition(":")[0]
    return kind if kind in DRAFTERS and DRAFTERS[kind].needs == FOLDER else ""


def check(spec: str) -> None:
    """ValueError for a spec that is neither a drafter with its option nor the name of a head, for any target."""
    if not _head(spec):
        parse(spec)


def competing(pairs: Sequence, specs: Sequence[str]) -> dict[str, tuple]:
    """The drafters compared on one target: label -> kind with its option, pair and options, as `make` takes them.

    pairs: of one target, in order of preference. specs: see `drafters.registry`, or names of heads, in addition
    to COMPARED; empty: all that exist for the target. "model" stands for the draft model of every pair, those of
    OF_MODELS for all of them in one; other kinds that need a draft model take the first, and are left out where no pair
    has one.
    """
    first, drafters = pairs[0], {}
    by_model = {pair.drafter_name: pair for pair in pairs if pair.draft_model is not None}
    standard = [spec for kind in DRAFTERS.values() for spec in kind.specs
                if not kind.drafter.refusal(first.target)]
    standard += [f"model:vocabulary={vocabulary.REDUCED}"] if vocabulary.ships(first.target_name) else []
    for spec in dict.fromkeys([*COMPARED, *specs] if specs else [*standard, *heads_of(first.target_name)]):
        if spec == "model":
            drafters |= {f"{MODEL}{name}": (spec, pair, {}) for name, pair in by_model.items()}
        elif _head(spec):
            kind, dash, variant = spec.partition("-")
            drafters[spec] = kind, first, {"folder": folder_of(first.target_name, f"{_head(spec)}{dash}{variant}")}
        elif spec in OF_MODELS:
            if len(by_model) > 1:
                drafters[spec] = spec, first, {"models": [pair.draft_model for pair in by_model.values()]}
        elif DRAFT_MODEL in needs(spec):
            drafters |= {spec: (spec, pair, {}) for pair in list(by_model.values())[:1]}
        else:
            drafters[spec] = spec, first, {}
    return drafters


def decoded(pairs: Sequence, prompts, specs: Sequence[str], shape_names: Sequence[str], *, new_tokens: int, seed: int,
            grown: Sequence[int] = (), done: set[tuple[str, str]] = frozenset()) -> Iterator[list[dict]]:
    """For each prompt the rows of the table "drafters": plain decoding, then every drafter and shape in shuffled order.

    pairs: of one target. prompts: with names, kinds, ids (see `prompts.PromptSet`). done: (target, prompt) to skip.
    Each setting has a drafter of its own, which sees the prompts in their order.
    """
    first = pairs[0]
    drafters, ready = competing(pairs, specs), {}
    longest = max(map(len, prompts.ids)) + new_tokens

    def is_control(label: str) -> bool:
        """Whether a drafter is a control, which starts anew for each prompt."""
        return DRAFTERS[parse(drafters[label][0])[0]].traits.control

    def drafter_of(label: str, shape: str, text: Sequence[int] = ()) -> Drafter:
        """The drafter of a setting; an oracle knows the prompt and its continuation."""
        spec, pair, options = drafters[label]
        if is_control(label):
            texts = {"texts": [text]} if spec == "oracle" else {}
            return make(spec, pair, {"generator": torch.Generator().manual_seed(seed), **texts})
        if (label, shape) not in ready:
            ready[label, shape] = make(spec, pair, options)
        return ready[label, shape]

    def run(drafter: Drafter, shape: str, ids: torch.Tensor) -> Generation:
        """Decodes a prompt int64[T]."""
        return generate(first.target, drafter, ids[None], shape=shape, max_new_tokens=new_tokens,
                        eos_token_id=first.eos_token_ids)

    for label in list(drafters):
        if not is_control(label) and (reason := window_refusal(drafter_of(label, shape_names[0]).window, longest)):
            print(f"{label} is left out: {reason}")
            del drafters[label]
    settings = [(label, shape) for label in drafters for shape in shape_names]
    for label in drafters if grown else ():
        if not is_control(label):
            rule = next(iter(growth_rules(drafter_of(label, shape_names[0]), DEEPEST)), "")
            settings += [(label, f"{rule}@{budget}") for budget in grown if rule]
    tried = tqdm(list(zip(prompts.names, prompts.kinds, prompts.ids)), mininterval=SECONDS, file=sys.stdout,
                 desc=f"{first.target_name}, {len(settings)} settings", unit="prompt")
    for name, kind, ids in tried:
        if (first.target_name, name) in done:
            continue
        about = {"target": first.target_name, "dtype": first.dtype, "prompt": name, "kind": kind}
        plain = run(NoDrafter(), "chain:0", ids)
        rows = _rows(plain, plain, NoDrafter(), first.target,
                     about | {"drafter": PLAIN, "shape": NO_SHAPE, "budget": 0})
        for label, shape in random.Random(f"{seed}/{name}").sample(settings, len(settings)):
            drafter = drafter_of(label, shape, [*ids.tolist(), *plain.new_tokens[0]])
            setting = {"drafter": label, "shape": shape, "budget": named(shape).budget}
            rows += _rows(run(drafter, shape, ids), plain, drafter, first.target, about | setting)
        yield rows


def _rows(done: Generation, plain: Generation, drafter: Drafter, target: nn.Module, about: Mapping) -> list[dict]:
    """One row for the stretch before the output's first loop, and one for the loop, where they have rounds."""
    def of(name: str) -> np.ndarray:
        """[R]: a field of all rounds."""
        return np.array([getattr(record, name) for record in done.rounds])

    counts = {name: of(name) for name in ("drafted", "accepted", "draft_calls")}
    counts |= {f"{part}_ms": 1000 * of(f"{part}_seconds").astype(float) for part in ("draft", "verify", "commit")}
    looped = of("position") - 1 >= loop_start(done.new_tokens[0])
    sums = tally([about["prompt"]], [about["kind"]], np.zeros(len(done.rounds), int), looped, counts)
    return sums.assign(**about, weight_bytes=drafter_bytes(drafter, target), target_bytes=model_bytes(target),
                       tokens=sums["accepted"] + sums["rounds"],
                       identical=done.new_tokens == plain.new_tokens).to_dict("records")


def drafter_bytes(drafter: Drafter, target: nn.Module) -> int:
    """Bytes of the weights of a drafter's models and heads that are not the target's."""
    shared = {tensor.data_ptr() for tensor in target.state_dict().values()}
    modules = [getattr(part, name, None) for part in _parts(drafter) for name in ("model", "head")]
    return sum({tensor.data_ptr(): tensor.nbytes for module in modules if module is not None
                for tensor in module.state_dict().values() if tensor.data_ptr() not in shared}.values())


def _parts(drafter: Drafter) -> list[Drafter]:
    """The drafter, or those that it is made of."""
    return [part for inner in drafter.drafters for part in _parts(inner)] if isinstance(drafter, Wrapper) else [drafter]


def model_bytes(model: nn.Module) -> int:
    """Bytes of a model's weights, each counted once."""
    return sum({tensor.data_ptr(): tensor.nbytes for tensor in model.state_dict().values()}.values())
