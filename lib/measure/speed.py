"""Tokens per second of every way of decoding, the recommendation among them, on the same groups of prompts in
interleaved turns: greedy, sampled, and in each number format of the weights; and the cost of a forward pass by format.
"""

import hashlib
import math
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from os.path import commonprefix

import pandas as pd
import torch
from torch import Tensor

from lib import cost
from lib.cost import recommendation
from lib.cost.calibration import rows_of_text
from lib.cost.candidates import Limits
from lib.cost.recommendation import NO_DRAFTER, Recommendation
from lib.cost.round_cost import RULER, RoundCost
from lib.cost.ways import ASSISTED, GENERATE, LOOKUP, Continued, Run, groups, one_per_round, ours, theirs
from lib.decoding import loop
from lib.decoding.checks import checkable
from lib.drafters.adaptive import AdaptiveDrafter, WhereItPays
from lib.drafters.controls import ExcerptDrafter
from lib.drafters.drafter import ROOT_ALONE
from lib.drafters.registry import made_for
from lib.drafters.registry import DRAFT_MODEL, make, needs
from lib.forward.load import load_pair
from lib.forward.packed import INT8, NONE, STORED
from lib.forward.passes import forward_pass
from lib.lab import processor
from lib.lab.chapter import Store
from lib.lab.tables import Table
from lib.lab.timing import LEAST_REPEATS, interleaved, synchronise
from lib.models.cache import TreeCache
from lib.models.checks import DTYPES, dtype_name
from lib.models.load import Pair
from lib.models.prompts import load as load_prompts
from lib.models.registry import GGUF, sources
from lib.trees import named, shapes
from lib.trees.growth import Growth
from lib.trees.tree import Tree

PLAIN = "loop, plain"
MODEL = "model"  # the drafter that is the pair's own model
ADAPTIVE = "adaptive, where it pays"
ADVISED = "recommended"  # the drafter and tree of recommendation.json
TRANSFORMERS = (GENERATE, *ASSISTED, LOOKUP)  # all but the first take one prompt at a time
RULE = "naive"  # lossless for chosen (top-k) children at any temperature
FORMATS = "float32", "bfloat16", INT8  # and "stored" for a GGUF file
NODES, PREFIX = (1, 2, 4, 8, 16, 32), 200  # of the forward passes that are timed by format, and tokens before them
Format = tuple[str, str]


def measure(store: Store, *, pairs: Sequence[str], prompts: str, choose_prompts: int, most_kinds: int,
            judge_prompts: int, new_tokens: int, batches: Sequence[int], repeats: int, drafters: Sequence[str],
            chain: str, more_shapes: Sequence[str], policy: str, seconds: float, most_nodes: int, most_depth: int,
            sampled_temperatures: Sequence[float], sampled_prompts: int, format_prompts: int,
            calibration_seconds: float, dtype: str, device: str, seed: int) -> None:
    """Writes the tables of notebook 07, which says what its parameters mean; rows that are there are not made again.

    The recommendation is that of the run, or where it has none for this target, format and these batch sizes one that
    is made here from the choosing prompts; rows of another recommendation are removed. ValueError for an unknown
    drafter.
    """
    pair = load_pair(pairs[0], dtype=dtype, device=device)
    drafters, more_shapes = possible(pair, drafters), checkable(pair.target, more_shapes)
    policy = policy if policy in possible(pair, [policy]) else "lookup"
    deepest = max(named(tree).max_depth for tree in (chain, *more_shapes, f"chain:{most_depth}"))
    longest = pair.window - new_tokens - 1 - deepest - 1 if pair.window else None
    texts = load_prompts(prompts, pair.tokenizer, limit=longest, first=choose_prompts + judge_prompts)
    kinds = list(dict.fromkeys(texts.kinds))[: most_kinds or None]  # the first kinds of text; 0: all
    texts = texts.select([row for row, kind in enumerate(texts.kinds) if kind in kinds])
    choosing, judged = texts.split(choose_prompts, judge_prompts)
    print(f"{len(judged.ids)} prompts are measured, {len(choosing.ids)} choose; drafters: {', '.join(drafters)}")
    advised = recommended(store, pair, batches, lambda: cost.recommend(
        [pair], choosing, judged, drafters=drafters, batches=batches, new_tokens=new_tokens,
        limits=Limits(most_nodes, most_depth), seconds=seconds, seed=seed).recommendation)
    chosen = [(choice.batch, choice.drafter, choice.tree) for choice in advised.by_batch]
    store = replace(store, mark=hashlib.sha256(f"{store.mark} {chosen}".encode()).hexdigest()[: len(store.mark)])

    order = torch.Generator().manual_seed(seed)
    ruler = ExcerptDrafter(choosing.ids, pair.vocabulary, torch.Generator().manual_seed(seed))
    costs = cost.CostTable(store.once("speed_costs", lambda: pd.concat([
        cost.calibrate(pair, choosing.ids, batches=batches, prefix=cost.usual_prefix(choosing.ids, new_tokens),
                       seconds=calibration_seconds, generator=order, drafter=drafter,
                       most=most_depth).assign(drafter=name)
        for name, drafter in {RULER: ruler, policy: make(policy, pair)}.items()])))
    trees = {(kind, chain): chain for kind in drafters}
    trees |= {(MODEL, shape): shape for shape in more_shapes if MODEL in drafters}
    table = store.open("speed")
    for batch in batches:
        choice = advised.at(batch)
        able = pair if choice.pair == pair.name else load_pair(choice.pair, dtype=dtype, device=device)
        price = [costs.at(pair.target_name, name, batch=batch) for name in (RULER, policy)]
        ways = all_of(pair, trees, draft=max(1, named(chain).max_depth), new_tokens=new_tokens)
        ways += [drafted(ADVISED, able, choice.drafter, choice.tree, choice.shape, new_tokens),
                 adaptive(pair, policy, *price, most_depth, new_tokens)]
        race(table, pair, ways, judged, batch=batch, repeats=repeats, generator=order)

    if sampled_prompts:
        choice, some = advised.by_batch[0], judged.select(range(min(sampled_prompts, len(judged.ids))))
        drafting = {(spec, shape): shape for spec in drafters for shape in (chain, *more_shapes)}
        if choice.pair == pair.name and not choice.is_plain:
            drafting[choice.drafter, choice.tree] = choice.shape
        store.once("sampled", lambda: sampled(
            pair, some, [(*names, shape) for names, shape in drafting.items()], sampled_temperatures,
            new_tokens=new_tokens, repeats=repeats, seed=seed, generator=order))
    if format_prompts and not store.open("format_costs").keys():
        some, by_format = judged.select(range(min(format_prompts, len(judged.ids)))), load_formats(pairs[0], device)
        drafting = [(MODEL, chain)] * (MODEL in drafters)
        drafting += [(policy, shape) for shape in [chain, *more_shapes][:2] if policy != MODEL]
        store.write("formats", in_formats(pairs[0], by_format, some, drafting, new_tokens=new_tokens, generator=order))
        store.write("format_costs", passes(pairs[0], by_format, choosing.ids, prefix=PREFIX,
                                           seconds=calibration_seconds / 4, generator=order))


def recommended(store: Store, pair, batches: Sequence[int], make_anew: Callable[[], Recommendation]) -> Recommendation:
    """The recommendation in the run's folder, or where it has none for this pair's target and format and these batches,
    the result of `make_anew`.
    """
    path = store.folder / recommendation.FILE
    if path.exists():
        advised = recommendation.load(path)
        fits = (advised.target, advised.dtype) == (pair.target_name, pair.dtype)
        if fits and {choice.batch for choice in advised.by_batch} >= set(batches):
            return advised
    return make_anew()


# ------------------------------------------------------------------------------------------------- the ways of decoding


@dataclass(frozen=True)
class Alternative:
    """A way of decoding.

    run: continues prompts int64[T]; drafter, shape: kind of drafter and label of the tree, empty where it has none;
    batched: whether it takes more than one prompt at a time.
    """

    name: str
    run: Run
    drafter: str = ""
    shape: str = ""
    batched: bool = True


def possible(pair, specs: Iterable[str]) -> list[str]:
    """The pair's own model if it has one, then those of these drafters that the pair can have."""
    able = {*made_for(pair.target_name)} | (set() if pair.draft_model is None else {DRAFT_MODEL})
    return [name for name in dict.fromkeys([MODEL, *specs]) if needs(name) <= able]


def all_of(pair, trees: Mapping[tuple[str, str], str | Tree], *, draft: int, new_tokens: int) -> list[Alternative]:
    """Transformers' ways, the plain loop, and the loop with each (drafter, label of a tree) of `trees`; assisted
    generation where the pair has a draft model.

    draft: tokens that assisted generation drafts in its first round. Drafters: specs as `drafters.registry.make` takes.
    """
    names = [name for name in TRANSFORMERS if name not in ASSISTED or pair.draft_model is not None]
    ways = [Alternative(name, theirs(pair, name, new_tokens, draft), batched=name == GENERATE) for name in names]
    ways.append(Alternative(PLAIN, ours(pair, make(NO_DRAFTER, pair), ROOT_ALONE, new_tokens)))
    return ways + [drafted(f"{spec}, {label}", pair, spec, label, shape, new_tokens)
                   for (spec, label), shape in trees.items()]


def drafted(name: str, pair, spec: str, label: str, shape: str | Tree | Growth, new_tokens: int,
            generate: Callable = loop.generate) -> Alternative:
    """The loop with a drafter and a tree, whose label is `label`; generate: in place of the loop."""
    return Alternative(name, ours(pair, make(spec, pair), shape, new_tokens, generate), spec, label)


def adaptive(pair, spec: str, checking: RoundCost, drafting: RoundCost, depth: int, new_tokens: int) -> Alternative:
    """The loop with a drafter that drafts a chain of up to `depth` tokens, as its last rounds advise, or nothing.

    checking: calibrated costs of rounds that always verify whole shapes; drafting: those of the drafter.
    """
    chains = [shapes.chain(length) for length in range(1, depth + 1)]
    rounds = [drafting.draft(tree) + float(checking.check(tree.budget)) for tree in chains]
    policy = WhereItPays(costs=(1.0, *(seconds / checking.plain for seconds in rounds)))
    drafter = AdaptiveDrafter(make(spec, pair), policy=policy)
    return Alternative(ADAPTIVE, ours(pair, drafter, f"chain:{depth}", new_tokens), ADAPTIVE, f"up to {depth}")


# --------------------------------------------------------------------------------------------------------------- timing


def race(table: Table, pair, alternatives: Sequence[Alternative], prompts, *, batch: int, repeats: int,
         generator: torch.Generator) -> None:
    """Times all alternatives on all groups of prompts, one row each; rows that the table has are not made again.

    Alternatives are interleaved on each group, in shuffled order, after one untimed run each. Those of transformers,
    which are slow, have one repeat. An interrupt loses the current run alone.
    """
    fitting = [way for way in alternatives if way.batched or batch == 1]
    texts: dict[str, list[list[int]]] = {}
    todo = [(repeat, *group, fitting[at]) for repeat in range(repeats) for group in groups(prompts, batch)
            for at in torch.randperm(len(fitting), generator=generator).tolist()
            if not (repeat and fitting[at].name in TRANSFORMERS)
            and (pair.name, pair.dtype, batch, fitting[at].name, group[0], repeat) not in table.keys()]
    for way in {way.name: way for *_, way in todo}.values():
        way.run(todo[0][3])
    for repeat, name, kind, group, way in todo:
        if name not in texts:
            texts[name] = next(other for other in fitting if other.name == GENERATE).run(group).tokens
        synchronise(pair.target.device)
        start = time.perf_counter()
        done = way.run(group)
        synchronise(pair.target.device)
        end = time.perf_counter()
        table.append(pair=pair.name, dtype=pair.dtype, batch=batch, alternative=way.name, drafter=way.drafter,
                     shape=way.shape, prompt=name, kind=kind, repeat=repeat, **counted(done, start, end),
                     same=done.tokens == texts[name])


def counted(done: Continued, start: float, end: float) -> dict[str, object]:
    """Tokens and seconds of one run between two times, and the counts and seconds of its rounds; NaN where a run has no
    records of them, but for the seconds after a prefill whose end is known.
    """
    counts = {"tokens": sum(map(len, done.tokens)), "seconds": end - start}
    if not done.rounds:
        unknown = dict.fromkeys(("rounds", "accepted", "model_seconds"), float("nan"))
        return counts | unknown | {"round_seconds": end - done.prefilled}
    rounds = one_per_round(done.rounds)
    return counts | {"rounds": float(len(done.rounds)), "accepted": float(sum(one.accepted for one in done.rounds)),
                   "round_seconds": sum(one.seconds for one in rounds),
                   "model_seconds": sum(one.model_seconds for one in rounds)}


def sampled(pair, prompts, drafting: Sequence[tuple[str, str, str | Tree | Growth]], temperatures: Sequence[float], *,
            new_tokens: int, repeats: int, seed: int, generator: torch.Generator) -> pd.DataFrame:
    """The table "sampled": the loop plain and with each (drafter, label of a tree, tree), one prompt at a time, in
    shuffled turns. Ways sample texts of their own, so that their speeds are compared, not their texts.

    repeats: texts of each way after each prompt. seed: of sampling; generator: of turns.
    """
    rows = []
    for temperature in temperatures:
        draws = torch.Generator().manual_seed(seed)
        decode = partial(loop.generate, rule=RULE, temperature=temperature, generator=draws)
        ways = [drafted(PLAIN, pair, NO_DRAFTER, "", ROOT_ALONE, new_tokens, generate=decode)]
        ways += [drafted(f"{spec}, {label}", pair, spec, label, shape, new_tokens, generate=decode)
                 for spec, label, shape in drafting]
        for way in ways:  # warm up
            way.run(prompts.ids[:1])
        for prompt, kind, ids in zip(prompts.names, prompts.kinds, prompts.ids):
            for turn in torch.randperm(repeats * len(ways), generator=generator).tolist():
                way, start = ways[turn % len(ways)], time.perf_counter()
                counts = counted(way.run([ids]), start, time.perf_counter())
                rows.append(dict(pair=pair.name, dtype=pair.dtype, batch=1, temperature=temperature, rule=RULE,
                                 alternative=way.name, drafter=way.drafter, shape=way.shape, prompt=prompt, kind=kind,
                                 repeat=turn // len(ways), **counts))
    return pd.DataFrame(rows)


# ------------------------------------------------------------------------------------------------------ number formats


def load_formats(name: str, device: str) -> dict[Format, Pair]:
    """A pair in each of FORMATS, and with the stored numbers of a target that is a GGUF file.

    Formats for which the device has no units are left out, since a prompt would take minutes.
    """
    target, drafter = sources(name)
    forms = [form for form in FORMATS if form == INT8 or not processor.slow_dtype(DTYPES[form], device)]
    if target.kind == GGUF:
        forms.append(STORED if drafter is None else f"{STORED}|float32")
    pairs = [load_pair(name, dtype=form, device=device) for form in forms]
    return {(dtype_name(pair.target.dtype), getattr(pair.target, "quantised", NONE)): pair for pair in pairs}


def in_formats(name: str, pairs: Mapping[Format, Pair], prompts, drafting: Sequence[tuple[str, str | Tree]], *,
               new_tokens: int, generator: torch.Generator) -> pd.DataFrame:
    """The table "formats": a pair in each format, plain and with each drafter and tree, on each prompt, in shuffled
    turns.

    name, pairs: as for and from `load_formats`. `agreeing` compares with the first format. Greedy text in each format
    is that of the target in this format.
    """
    runs, first = {}, next(iter(pairs))
    for form, pair in pairs.items():
        runs[form, PLAIN] = drafted(PLAIN, pair, NO_DRAFTER, "", ROOT_ALONE, new_tokens)
        for spec, shape in drafting:
            runs[form, f"{spec}, {shape}"] = drafted(f"{spec}, {shape}", pair, spec, str(shape), shape, new_tokens)
    held = {form: {"target_weights": weights(pair.target), "drafter_weights": weights(pair.draft_model)}
            for form, pair in pairs.items()}
    for run in runs.values():  # warm up
        run.run(prompts.ids[:1])
    rows = []
    for prompt, kind, ids in zip(prompts.names, prompts.kinds, prompts.ids):
        done, counts = {}, {}
        for at in torch.randperm(len(runs), generator=generator).tolist():
            key, start = list(runs)[at], time.perf_counter()
            done[key] = runs[key].run([ids])
            counts[key] = counted(done[key], start, time.perf_counter())
        for (form, alternative), run in runs.items():
            beside = done.get((first, alternative), done[first, PLAIN])
            rows.append(dict(
                pair=name, batch=1, dtype=form[0], quantised=form[1], alternative=alternative, drafter=run.drafter,
                shape=run.shape, prompt=prompt, kind=kind, **held[form], **counts[form, alternative],
                agreeing=len(commonprefix([done[form, alternative].tokens[0], beside.tokens[0]]))))
    return pd.DataFrame(rows)


def weights(model) -> int:
    """Bytes of a model's parameters and buffers, shared ones once; 0 without a model."""
    tensors = [*model.parameters(), *model.buffers()] if model is not None else []
    return sum({tensor.data_ptr(): tensor.nbytes for tensor in tensors}.values())


def passes(name: str, pairs: Mapping[Format, Pair], prompts: Sequence[Tensor], *, prefix: int, seconds: float,
           generator: torch.Generator) -> pd.DataFrame:
    """The table "format_costs": a forward pass of the target over NODES nodes of a chain after a prefix, in each
    format, in shuffled turns, which share `seconds` for each number of nodes.
    """
    tokens = rows_of_text(prompts, 1, prefix + max(NODES))
    ready = {form: _passes(forward_pass(pair.target), tokens, prefix) for form, pair in pairs.items()}
    rows = []
    for nodes in NODES:
        calls = {key: partial(run, nodes) for key, run in ready.items()}
        timed = interleaved(calls, repeats=60, seconds=seconds, generator=generator)
        late = {key: calls[key] for key, timing in timed.items() if not timing.repeats}  # the machine stood still
        timed |= interleaved(late, repeats=LEAST_REPEATS, seconds=math.inf, generator=generator)
        rows += [dict(pair=name, dtype=dtype, quantised=quantised, prefix=prefix, nodes=nodes, **timing.row)
                 for (dtype, quantised), timing in timed.items()]
    return pd.DataFrame(rows)


def _passes(model, tokens: Tensor, prefix: int) -> Callable[[int], object]:
    """A forward pass over the next nodes [1, n] after a prefix, as a function of n."""
    cache = TreeCache()
    with torch.inference_mode():
        model(tokens[:, :prefix], torch.arange(prefix), None, cache, logits_to_keep=1)
        cache.commit([list(range(prefix))])

    @torch.inference_mode()
    def run(nodes: int) -> None:
        """One forward pass, which leaves the cache as it was."""
        model(tokens[:, prefix : prefix + nodes], torch.arange(nodes), None, cache)
        cache.forget()

    return run
