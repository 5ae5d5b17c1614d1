"""The tables of notebook 02: what each drafter of each target accepts, by shape, nodes, kind of text and temperature.

One trace of a target serves all drafters and trees (see `study.acceptance`). Trees are grown from the choosing prompts
and replayed on the others; a row is of one judged prompt. What no trace decides decodes live (see `study.live`).
"""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial
from itertools import product
from pathlib import Path

import numpy as np
import pandas as pd
import torch

from lib.decoding.checks import checkable
from lib.decoding.walkthrough import walk
from lib.drafters import vocabulary
from lib.drafters.drafter import Drafter
from lib.drafters.heads.files import NGRAMS
from lib.drafters.registry import BY_RANKS, DRAFT_MODEL, DRAFTERS, made_for, make, needs, parse
from lib.drafters.text_drafters import NgramDrafter
from lib.drafters.text_index import NgramTables
from lib.engines.methods import Way
from lib.forward.load import load_pairs
from lib.lab.chapter import Store
from lib.lab.tables import FINGERPRINT
from lib.models.prompts import PromptSet
from lib.replay import acceptance, atlas, recording
from lib.replay.recording import Competitors
from lib.replay.simulated import Recorded
from lib.replay.trace import Trace
from lib.replay.trace import load as load_trace
from lib.study import live
from lib.study.acceptance import record, replay
from lib.study.bench import CHOOSING, JUDGING, Bench, of_pair, without_loops
from lib.study.candidates import MODEL, drafters_of, growth_rules, possible, ranked_name
from lib.study.settings import Acceptance
from lib.trees import named
from lib.trees.names import COMPARED, FREQUENT
from lib.trees.picture import visible
from lib.verify.rules import SIMPLEST

SMALL = ("chain", "kary:2")  # families of drafters that draft again
ALWAYS = ("chain", "kary:2", "optimal")  # families that are compared in any case
LARGEST = 32  # nodes of the trees whose nodes are counted, besides those of the compared size
DEPTH = 8  # levels of trees that grow in each round
CONTEXT = 60  # characters of context kept per round


def measure(store: Store, settings: Acceptance) -> None:
    """Fills the tables prompts, texts, rounds, rank, nodes, depth, position, live, expected and answer.

    Live decoding and the answer are of the first target. Traces are kept batch by batch, and rows that exist are not
    computed again. With `publish`, greedy traces go to this folder as files of the atlas.
    """
    by_target: dict[str, list] = {}
    for pair in load_pairs(settings.pairs, dtype=settings.dtype, device=settings.device):
        by_target.setdefault(pair.target_name, []).append(pair)
    coldest = min(settings.temperatures)
    deepest = max(*settings.budgets, settings.budget, *settings.chain_lengths, DEPTH)
    for number, pairs in enumerate(by_target.values()):
        live_depth = max(named(shape).max_depth for shape in settings.live_shapes)
        limit = pairs[0].room(max(settings.new_tokens + deepest, settings.live_tokens + live_depth))
        plain = of_pair(pairs[0], store, settings, limit, {1: 0}, deepest)
        longest = max(map(len, plain.prompts.ids)) + plain.new_tokens + plain.longest + 1
        drafters = Competitors(competing, pairs, tuple(settings.drafters), longest, settings.seed)
        for temperature in sorted(settings.temperatures):
            bench = replace(plain, backend=replace(plain.backend, temperature=temperature))
            used = drafters if temperature == coldest else first_ranked(drafters)
            recorded = record(bench, used)
            replay_all(bench, recorded, used, settings)
            if settings.publish and not temperature:
                publish(bench, recorded, used, Path(settings.publish))
            if temperature == coldest and not number:
                decode_live(bench, pairs, recorded, drafters, settings)


def competing(pairs: Sequence, specs: Sequence[str], longest: int, seed: int) -> dict[str, Drafter]:
    """The drafters whose rounds a trace decides, draft models first: of `specs`, or all, those that the target can
    have; n-grams of its text, where no other has ranks, from which trees are grown; and random tokens as a control.
    """
    target = pairs[0].target_name
    existing = {*made_for(target)} | {DRAFT_MODEL for pair in pairs if pair.draft_model is not None}
    replayed = [spec for spec in specs or possible(pairs[0]) if needs(spec) <= existing and not live.is_live(spec)
                and ("vocabulary" not in parse(spec)[1] or vocabulary.ships(target))
                and not DRAFTERS[parse(spec)[0]].traits.control]
    drafters = drafters_of(pairs, sorted(replayed, key=lambda spec: parse(spec)[0] != MODEL), longest)
    if not recording.of_ranks(drafters):
        drafters[NGRAMS] = NgramDrafter(NgramTables((), pairs[0].target.config.get_text_config().vocab_size))
    return drafters | {"random": make("random", pairs[0], {"generator": torch.Generator().manual_seed(seed)})}


def first_ranked(drafters: Mapping[str, Drafter]) -> dict[str, Drafter]:
    """The first drafter with ranks, whose figures stand first."""
    name = next(iter(recording.of_ranks(drafters)))
    return {name: drafters[name]}


# --------------------------------------------------------------------------------------------------------------- replay


def replay_all(bench: Bench, recorded: Recorded, drafters: Mapping[str, Drafter], settings: Acceptance) -> None:
    """Adds rows of the tables "rounds" and "rank", and at the lowest temperature those of `add_details`."""
    used = without_loops(bench)
    choosing, judging = (recorded.trace.select(np.array(used.rows(part))) for part in (CHOOSING, JUDGING))
    (first,), temperature = first_ranked(drafters), bench.backend.temperature
    done = {key[:-1] for key in bench.store.open("rounds").keys()}
    for name, drafter in drafters.items():
        shapes = checkable(bench.backend.pair.target, shapes_of(drafter, name == first, settings, bench))
        ways = ways_of(name, drafter, choosing, shapes)
        missing = [way for way in ways if (*bench.source.values(), name, way.shape_name) not in done]
        replay(bench, recorded, missing, bench.rows(JUDGING))
        if name in judging.ranks:
            ranks = acceptance.by_rank(judging, name)
            bench.store.open("rank").add(ranks.assign(target=bench.target, temperature=temperature, drafter=name))
            if temperature == min(settings.temperatures):
                add_details(bench, judging, ways, name == first, settings)


def add_details(bench: Bench, judging: Trace, ways: Sequence[Way], is_first: bool, settings: Acceptance) -> None:
    """Adds the rows of the table "position", for the binary tree of a drafter with ranks; for every family of the first
    one those of "depth", at the compared size, and of "nodes", also at smaller ones.
    """
    families, shapes = families_of(settings), {"position": {f"kary:2@{settings.budget}"}}
    if is_first:
        shapes["depth"] = {shape_name(family, settings.budget) for family in families}
        shapes["nodes"] = shapes["depth"] | {shape_name(family, budget) for family in families
                                             for budget in settings.budgets if budget <= LARGEST}
    count = {"position": lambda tree, rounds: acceptance.by_quarter(judging, rounds), "nodes": acceptance.by_node,
             "depth": partial(acceptance.by_depth, judging)}
    for name, names in shapes.items():
        for way in [way for way in ways if way.shape_name in names]:
            rows = count[name](way.shape, acceptance.rounds_of(judging, way.shape, way.method))
            bench.store.open(name).add(rows.assign(target=bench.target, drafter=way.method, shape=way.shape_name))


def shapes_of(drafter: Drafter, is_first: bool, settings: Acceptance, bench: Bench) -> list[str]:
    """The names of the trees that a drafter fills: few where it drafts again, which takes time, or samples."""
    families, rules, others = ("chain", "optimal"), (), ()
    if not bench.backend.temperature:
        ranks_decide = drafter.traits.replay == BY_RANKS and not drafter.traits.reads_text
        families = families_of(settings) if is_first or ranks_decide else SMALL
        rules, others = growth_rules(drafter, min(DEPTH, drafter.deepest or DEPTH)), settings.live_shapes
    names = [shape_name(family, budget) for family, budget in product(families, [*settings.budgets, settings.budget])]
    names += [f"chain:{length}" for length in settings.chain_lengths]
    names += [f"{rule}@{budget}" for rule, budget in product(rules, (max(1, settings.budget // 4), settings.budget))]
    return list(dict.fromkeys([*names, *others]))


def families_of(settings: Acceptance) -> list[str]:
    """The families that are compared, ALWAYS among them."""
    return list(dict.fromkeys([*(settings.families or [*COMPARED, FREQUENT]), *ALWAYS]))


def shape_name(family: str, budget: int) -> str:
    """The name of a family's tree of so many nodes."""
    return f"{family}:{budget}" if family == "chain" else f"{family}@{budget}"


def ways_of(name: str, drafter: Drafter, choosing: Trace, shapes: Sequence[str]) -> list[Way]:
    """A drafter with each tree that is no deeper than it drafts; some trees grow from the choosing part of a trace."""
    trees = {shape: acceptance.tree_of(shape, choosing, name) for shape in shapes}
    ranked = ranked_name(name, drafter, choosing)
    levels = min(atlas.levels_of(choosing, ranked) if ranked else np.inf, drafter.deepest or np.inf)
    return [Way(f"{name}, {shape}", name, tree, shape, drafter, ranked) for shape, tree in trees.items()
            if tree.max_depth <= levels]


# ----------------------------------------------------------------------------------------- live decoding, answer, atlas


def decode_live(bench: Bench, pairs: Sequence, recorded: Recorded, drafters: Mapping[str, Drafter],
                settings: Acceptance) -> None:
    """Fills the tables "live", "expected" and, last, "answer" on the prompts that judge."""
    pair, prompts = pairs[0], bench.prompts.select(bench.rows(JUDGING))
    shapes = checkable(pair.target, settings.live_shapes)
    plain = {name: row[row >= 0].tolist() for name, row in zip(recorded.trace.prompts, recorded.trace.tokens)}
    specs = filter(live.is_live, settings.drafters or live.possible(pairs))
    greedy = [(spec, "greedy", shape, 0.0) for spec, shape in product(specs, shapes)]
    live.decode(bench.store, pairs, prompts, greedy, plain, settings.new_tokens, settings.seed)
    if pair.draft_model is not None:
        sampled = [("model", rule, shape, temperature) for shape, temperature, rule
                   in product(shapes, filter(None, settings.temperatures), SIMPLEST.values())]
        live.decode(bench.store, pairs, prompts, sampled, plain, settings.live_tokens, settings.seed)
        live.expect(bench.store, pair, prompts, shapes, settings.temperatures, settings.live_tokens, settings.seed)
    (name, drafter), = first_ranked(drafters).items()
    bench.store.once("answer", lambda: answer(pair, name, drafter, prompts, shapes[-1], settings.live_tokens))


def answer(pair, spec: str, drafter: Drafter, prompts: PromptSet, shape: str, new_tokens: int) -> pd.DataFrame:
    """The table "answer": the rounds of the first prompt that has any, decoded greedily. A row for each node in order,
    and one for the bonus token, whose parent is the last accepted node.
    """
    walks = (walk(pair, drafter, ids, shape, new_tokens=new_tokens) for ids in prompts.ids)
    frames = [pd.DataFrame()]
    for step in next((steps for steps in walks if steps), []):
        before = "".join(text for text, _ in step.text[: len(step.text) - step.fresh])[-CONTEXT:]
        nodes = range(step.tree.size + 1)
        frames.append(pd.DataFrame({
            "round": step.number, "node": nodes, "parent": step.parents, "role": step.roles,
            "token": [visible(token) for token in (*step.tokens, step.bonus)],
            "probability": pd.Series(step.probabilities, dtype=float),
            "target_probability": pd.Series(step.target_probabilities, dtype=float),
            "context": visible(before, CONTEXT)}, index=nodes))
    return pd.concat(frames, ignore_index=True).assign(pair=pair.name, drafter=spec, shape=shape)


def publish(bench: Bench, recorded: Recorded, drafters: Mapping[str, Drafter], folder: Path) -> None:
    """Writes a greedy trace to a file of the atlas, with the drafts of drafters that grow trees, which takes minutes:
    a file of an earlier call with the same rows' fingerprint is kept.
    """
    path = folder / f"{bench.target}.continuation.npz".replace("/", "_")
    if path.exists() and load_trace(path).labels.get(FINGERPRINT) == bench.store.mark:
        return
    trace = recorded.trace
    chooses = [name for name, part in zip(trace.prompts, bench.parts) if part == CHOOSING]
    labels = {**trace.labels, "choosing": chooses, FINGERPRINT: bench.store.mark}
    split = Recorded(replace(trace, labels=labels), recorded.prompts)
    growing = {name: drafter for name, drafter in drafters.items() if drafter.traits.grows
               and drafter.traits.replay == BY_RANKS}
    atlas.publish(split, growing, path)
