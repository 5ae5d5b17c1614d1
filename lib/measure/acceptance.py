"""The tables of notebook 2: what each drafter of each pair accepts, by shape, budget, kind of text and temperature.

One recording of a target serves all its drafters and trees. Static trees are grown from the choosing prompts and judged
on the others by replay; rows are by judged prompt, so that differences can be paired and have intervals.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import product
from pathlib import Path

import numpy as np
import pandas as pd

from lib.decoding.checks import checkable
from lib.decoding.walkthrough import walk
from lib.drafters import vocabulary as reduced_vocabulary
from lib.drafters.drafter import Drafter, TextDrafter
from lib.drafters.language_model import LanguageModelDrafter
from lib.drafters.registry import DRAFTERS, FOLDER, kinds_for
from lib.forward.load import load_pairs
from lib.forward.packed import parameters_of
from lib.forward.reduced import first_tokens
from lib.lab import cluster
from lib.lab.chapter import Store
from lib.models.prompts import PromptSet
from lib.models.prompts import load as load_prompts
from lib.replay import acceptance, atlas, expectation, live, recording, simulated
from lib.replay.acceptance import FREQUENT
from lib.replay.recording import Competitors
from lib.replay.simulated import Recorded
from lib.replay.trace import Trace
from lib.trees import named, shapes
from lib.trees.picture import visible
from lib.trees.growth import Growth
from lib.trees.names import COMPARED
from lib.trees.tree import Tree
from lib.verify.draft import PROPOSALS
from lib.verify.rules import SIMPLEST

GROWN = ("sparse", "optimal", FREQUENT)  # families that are grown from ranks; the others are fixed in advance
CHOSEN = (FREQUENT, "optimal")  # families compared by the text that they need: frequencies of paths, or 16 numbers
DRAWS = 5  # of choosing prompts
BESIDE = ("chain", "optimal")  # static families that grown trees are compared with
CONFIDENCES = (1.0, 0.6)  # temperatures of the drafting probabilities that are tried
BY_NODE = ("multi_step", "k_seq", "without_replacement")  # rules that decide node by node
NESTED, LARGEST = ("chain", "kary:2", "optimal"), 32  # families and nodes of trees that are kept at each budget
CONTEXT = 60  # characters of context kept per round
Shaped = tuple[str, int, Tree | Growth]  # a family, a budget, and its tree or growth rule


@dataclass(frozen=True)
class Studied:
    """One trace of a target, with the drafters that compete on it."""

    recorded: Recorded
    competitors: Competitors

    @property
    def about(self) -> Mapping[str, object]:
        """Target and temperature, which all rows of the trace have."""
        return _about(self.recorded.trace)


def measure(store: Store, *, device: str, pairs: Sequence[str], drafters: Sequence[str], prompts: str,
            choose_prompts: int, judge_prompts: int, new_tokens: int, temperatures: Sequence[float],
            families: Sequence[str], budgets: Sequence[int], depth_budget: int, chain_lengths: Sequence[int],
            growth_rules: Sequence[str], live_shapes: Sequence[str], live_tokens: int, dtype: str, seed: int,
            publish: str = "") -> None:
    """Writes the tables acceptance, depth, nodes, rank, chains, repetition, vocabulary, choices, growth, live,
    expected, answer and models.

    The parameters are those of notebook 2. Growth, live decoding and the answer are of the first pair. Traces are
    kept batch by batch in the folder `traces` of the run, so that a measurement that was stopped continues; nothing is
    computed where all tables have the store's mark. publish: a folder to which the greedy traces go as files of the
    atlas. ValueError for prompts, drafters or shapes that do not fit.
    """
    if len(store.open("models").frame()):
        return  # it is written last
    families = list(dict.fromkeys([*(families or [*COMPARED, FREQUENT]), *BESIDE]))
    budgets = sorted({*budgets, depth_budget})
    deepest = max([*budgets, *chain_lengths])
    loaded = load_pairs(pairs, dtype=dtype, device=device)
    live_shapes = checkable(loaded[0].target, live_shapes)
    asked: dict[str, PromptSet] = {}
    studied: list[Studied] = []
    by_target: dict[str, list] = {}
    for pair in loaded:
        by_target.setdefault(pair.target_name, []).append(pair)
    for target, group in by_target.items():
        room = recording.room(group, new_tokens=new_tokens, live_tokens=live_tokens, live_shapes=live_shapes,
                              deepest=deepest)
        texts = load_prompts(prompts, group[0].tokenizer, limit=room, first=choose_prompts + judge_prompts)
        choosing, _ = texts.split(choose_prompts, judge_prompts)
        print(f"{target}: {len(texts.ids)} prompts of {len(set(texts.kinds))} kinds")
        longest = max(map(len, texts.ids)) + new_tokens + deepest + 1
        asked[target], competitors = texts, Competitors(group, drafters, longest)
        studied += [Studied(recorded, competitors) for recorded in recording.record_all(
            competitors, texts, choosing.names, temperatures=temperatures, tokens=new_tokens, seed=seed,
            folder=store.folder / "traces" / store.mark, deepest=deepest)]

    for one in studied if publish else ():
        written(one, Path(publish))
    for name, rows in replay_all(studied, families, budgets, depth_budget, chain_lengths).items():
        store.write(name, rows)
    store.write("repetition", repetition(studied))
    store.write("vocabulary", vocabulary(studied))
    coldest = [one for one in studied if one.about["temperature"] == temperatures[0]]
    store.write("choices", choices(coldest, depth_budget, np.random.default_rng(seed)))
    pair = loaded[0]
    headline = headlined(coldest, pair.target_name)
    drafter = next(iter(headline.competitors.of_ranks))
    store.write("growth", compare_grown(headline, drafter, growth_rules, sorted({max(1, depth_budget // 4),
                                                                                 depth_budget}), pair.vocabulary))
    texts = asked[pair.target_name]
    _, judging = texts.split(choose_prompts, judge_prompts)
    sampling = dict(new_tokens=live_tokens, seed=seed)
    store.write("live", sampled_live(pair, judging, live_shapes, temperatures, **sampling))
    store.write("expected", expected(pair, judging, live_shapes, temperatures, **sampling))
    model = as_drafter(headline.competitors[drafter], pair.vocabulary)
    store.write("answer", answer(pair, model, texts, live_shapes[-1], live_tokens).assign(drafter=drafter))
    store.write("models", models(loaded))


def written(one: Studied, folder: Path) -> None:
    """Writes a greedy trace to a file of the atlas, with the drafts of drafters that grow trees; the heads that ship
    for the target are recorded too.
    """
    about, known, pair = one.about, one.recorded.trace, one.competitors.pairs[0]
    if about["temperature"] != 0:
        return
    drafters, recorded = dict(one.competitors.of_ranks), one.recorded
    heads = [name for name in kinds_for(pair) if DRAFTERS[name].needs == FOLDER and name not in one.competitors]
    if heads := [name for name in heads if DRAFTERS[name].traits.grows]:
        drafters |= (more := Competitors([pair], heads))
        texts = recording.Texts(known.prompts, known.kinds, recorded.prompts,
                                [row[row >= 0].tolist() for row in known.tokens], known.ended)
        read = recording.read(pair.target, more.of_ranks, texts, ahead=atlas.AHEAD)
        known = replace(known, ranks={**known.ranks, **read.ranks}, probs={**known.probs, **read.probs})
        recorded = Recorded(known, recorded.prompts)
    growing = {name: as_drafter(drafter, pair.vocabulary) for name, drafter in drafters.items()}
    place = folder / f"{about['target']}.continuation.npz".replace("/", "_")
    atlas.publish(recorded, {name: drafter for name, drafter in growing.items() if drafter.traits.grows}, place)


def models(pairs: Sequence) -> pd.DataFrame:
    """The table "models": each model of the pairs with its size."""
    by_name = {name: model for pair in pairs for name, model in (
        (pair.target_name, pair.target), (pair.drafter_name, pair.draft_model)) if model is not None}
    rows = []
    for name, model in by_name.items():
        sizes = model.config.get_text_config()
        rows.append({"model": name, "parameters": parameters_of(model), "layers": sizes.num_hidden_layers,
                     "hidden": sizes.hidden_size, "vocabulary": sizes.vocab_size,
                     "dtype": str(model.dtype).removeprefix("torch.")})
    return pd.DataFrame(rows)


# -------------------------------------------------------------------------------------------------------------- shapes


def replay_all(studied: Sequence[Studied], families: Sequence[str], budgets: Sequence[int],
               depth_budget: int, chain_lengths: Sequence[int] = ()) -> dict[str, pd.DataFrame]:
    """The tables "acceptance", of drafters with ranks "rank", at one budget "depth" and "nodes", which has the small
    trees of NESTED at each budget too, and with lengths of further chains "chains".

    Drafters that read the text draft again; those without ranks have no families that are grown from ranks.
    """
    tables: dict[str, list[pd.DataFrame]] = {"acceptance": [], "depth": [], "nodes": [], "rank": [], "chains": []}
    chains = [("chain", length, shapes.chain(length)) for length in chain_lengths]
    for one in studied:
        choosing, judged = one.recorded.halves()
        trace = judged.trace
        for name, drafter in one.competitors.items():
            ranked = name in trace.ranks
            fitting = [family for family in families if ranked or family not in GROWN]
            trees = forest(choosing.trace, name, fitting, budgets)
            tables["acceptance"].append(evaluate(judged, name, drafter, trees).drop(columns="calls"))
            for family, budget, tree in trees if ranked else ():
                small = family in NESTED and budget <= LARGEST and one.about["temperature"] == 0
                if budget == depth_budget or small:
                    setting = dict(family=family, budget=budget, drafter=name, **one.about)
                    rounds = acceptance.rounds_of(trace, tree, name)
                    tables["nodes"].append(acceptance.by_node(tree, rounds, trace.loops).assign(**setting))
                if budget == depth_budget:
                    tables["depth"].append(acceptance.by_depth(trace, tree, rounds).assign(**setting))
            if ranked:
                tables["rank"].append(acceptance.by_rank(trace, name).assign(drafter=name, **one.about))
            if chains:
                rows = evaluate(judged, name, drafter, chains)
                tables["chains"].append(rows.drop(columns=["family", "depth", "calls"]))
    return {name: pd.concat(frames, ignore_index=True) for name, frames in tables.items() if frames}


def forest(choosing: Trace, drafter: str, families: Sequence[str], budgets: Sequence[int]) -> list[Shaped]:
    """Each family at each budget; grown families come from the choosing part of the trace."""
    return [(family, budget, acceptance.family_tree(family, budget, choosing, drafter))
            for family in families for budget in budgets]


def evaluate(judged: Recorded, name: str, drafter: object, trees: Sequence[Shaped]) -> pd.DataFrame:
    """`acceptance.evaluate` of static trees, and `calls`, one forward pass for each level of a tree; by drafting again
    where the drafter reads the text or has no ranks.
    """
    if name not in judged.trace.ranks or isinstance(drafter, TextDrafter):
        return drafted_again(judged, name, drafter, trees)
    rows = acceptance.evaluate(judged.trace, name, trees)
    return rows.assign(calls=rows["rounds"] * rows["depth"])


def drafted_again(recorded: Recorded, name: str, drafter: Drafter, trees: Sequence[Shaped]) -> pd.DataFrame:
    """The rows of `evaluate` by drafting again in each round; calls: the drafter's forward passes; depth: of a growth
    rule that of the deepest tree that grew.
    """
    frames = []
    for family, budget, shape in trees:
        rounds = simulated.rounds(recorded, drafter, shape)
        depth = shape.max_depth if isinstance(shape, Tree) else rounds.depth.max(initial=0)
        rows = acceptance.tally_walk(recorded.trace, rounds, {"calls": rounds.draft_calls})
        frames.append(rows.assign(family=family, budget=budget, depth=depth))
    return pd.concat(frames, ignore_index=True).assign(drafter=name, **_about(recorded.trace))


def _about(trace: Trace) -> dict[str, object]:
    return {key: trace.labels[key] for key in ("target", "temperature")}


def repetition(studied: Sequence[Studied]) -> pd.DataFrame:
    """The table "repetition": for each continuation whether and where it begins to loop."""
    return pd.concat([acceptance.repetition(one.recorded.trace).assign(**one.about) for one in studied],
                     ignore_index=True)


def vocabulary(studied: Sequence[Studied]) -> pd.DataFrame:
    """The table "vocabulary": for each continuation of a target whose frequent tokens ship, how many of its tokens
    before a loop are among the first `vocabulary.REDUCED` of them.
    """
    frames, size = [], reduced_vocabulary.REDUCED
    for one in studied:
        target, trace = one.about["target"], one.recorded.trace
        if not reduced_vocabulary.ships(target):
            continue
        known = reduced_vocabulary.shipped(target, size).numpy()
        written = [row[1 : end + 1] for row, end in zip(trace.tokens, trace.loops)]
        frames.append(pd.DataFrame(dict(
            target=target, temperature=one.about["temperature"], prompt=trace.prompts, kind=trace.kinds, size=size,
            tokens=list(map(len, written)), covered=[int(np.isin(row, known).sum()) for row in written])))
    return pd.concat(frames, ignore_index=True) if frames else pd.DataFrame()


def headlined(studied: Sequence[Studied], target: str) -> Studied:
    """The target's first trace."""
    return next(one for one in studied if one.about["target"] == target)


# ------------------------------------------------------------------------------------------------------------- choices


def choices(studied: Sequence[Studied], budget: int, generator: np.random.Generator) -> pd.DataFrame:
    """The table "choices": how much text a tree of `budget` nodes needs, for the drafters of each target's headline
    trace and each of the families CHOSEN.
    """
    frames = []
    for target in dict.fromkeys(one.about["target"] for one in studied):
        choosing, judged = headlined(studied, target).recorded.halves()
        frames += [choose_from_prompts(choosing.trace, judged.trace, drafter, budget, generator)
                   for drafter in judged.trace.ranks]
    return pd.concat(frames, ignore_index=True)


def choose_from_prompts(choosing: Trace, judged: Trace, drafter: str, budget: int, generator: np.random.Generator, *,
                        draws: int = DRAWS) -> pd.DataFrame:
    """Rows of each family's tree grown from 1, 2, 4, ... and all choosing prompts, `draws` nested draws of them each.

    A draw puts the prompts in random order, and its subsets are the beginnings; all prompts give one tree only. Rows of
    one judged prompt stay together in all draws, so that intervals from resampling prompts hold for the mean of the
    draws. positions: of the text that the tree was chosen from, before a loop.
    """
    names = sorted(set(choosing.prompts))
    counts = [2**step for step in range(len(names).bit_length()) if 2**step < len(names)]
    orders = [generator.permutation(names).tolist() for _ in range(draws)]
    pieces = [(draw, order[:count]) for draw, order in enumerate(orders)
              for count in (counts if draw else [*counts, len(names)])]
    return pd.concat(cluster.spread(_chosen_from, pieces, choosing, judged, drafter, budget), ignore_index=True)


def _chosen_from(piece: tuple[int, list[str]], choosing: Trace, judged: Trace, drafter: str,
                 budget: int) -> pd.DataFrame:
    """The rows of a draw's number and some of its prompts."""
    draw, prompts = piece
    text = choosing.select(np.isin(np.array(choosing.prompts), prompts))
    rows = acceptance.evaluate(judged, drafter, forest(text, drafter, CHOSEN, [budget]))
    return rows.drop(columns="depth").assign(
        draw=draw, prompts=len(prompts), positions=int(np.minimum(text.loops, text.lengths).sum()))


# --------------------------------------------------------------------------------------------------------- grown trees


def as_drafter(model, vocabulary: int | None = None, temperature: float = 1.0) -> Drafter:
    """The drafter of a language model at a temperature, without the padding of its vocabulary; a drafter as it is."""
    if isinstance(model, Drafter):
        return model
    return LanguageModelDrafter(first_tokens(model, vocabulary) if vocabulary else model, temperature=temperature)


def compare_grown(studied: Studied, name: str, rules: Sequence[str], budgets: Sequence[int],
                  vocabulary: int | None = None, *, confidences: Sequence[float] = CONFIDENCES) -> pd.DataFrame:
    """The table "growth": the static families BESIDE and growth rules (names without a budget) at each budget, of one
    drafter, on the judged prompts. No rows for a drafter without probabilities over which trees grow.

    vocabulary: the target's, where the drafter's is larger. confidences: temperatures of the drafter's probabilities,
    of which each rule and budget takes the best on the choosing prompts; missing for static trees.
    """
    model = studied.competitors[name]
    if isinstance(model, TextDrafter):
        return pd.DataFrame()
    choosing, judged = studied.recorded.halves()
    static = evaluate(judged, name, model, forest(choosing.trace, name, BESIDE, budgets)).assign(confidence=np.nan)
    grown = cluster.spread(_grown, product(rules, budgets), studied.recorded, name, studied.competitors, vocabulary,
                           confidences)
    return pd.concat([static, *grown], ignore_index=True)


def _grown(setting: tuple[str, int], recorded: Recorded, name: str, competitors: Mapping[str, object],
           vocabulary: int | None, confidences: Sequence[float]) -> pd.DataFrame:
    """The rows of one rule and budget, at the temperature that accepted most on the choosing prompts."""
    choosing, judged = recorded.halves()
    family, budget = setting
    wanted = [(family, budget, named(f"{family}@{budget}"))]
    lengths = {}
    for confidence in confidences:
        rows = drafted_again(choosing, name, as_drafter(competitors[name], vocabulary, confidence), wanted)
        before = rows[rows["stretch"] == "before"]
        lengths[confidence] = before["accepted"].sum() / max(1, before["rounds"].sum())
    best = max(lengths, key=lengths.get)
    return drafted_again(judged, name, as_drafter(competitors[name], vocabulary, best), wanted).assign(confidence=best)


# ---------------------------------------------------------------------------------------------------- sampled children


def sampled_live(pair, prompts: PromptSet, shape_names: Sequence[str], temperatures: Sequence[float], *,
                 new_tokens: int, seed: int) -> pd.DataFrame:
    """The table "live": each proposal of a pair's draft model under its simplest rule, for each shape and temperature
    above 0; no rows for a target alone.
    """
    if pair.draft_model is None:
        return pd.DataFrame()
    settings = product(shape_names, filter(None, temperatures), PROPOSALS)
    frames = [live.run(live.Live(proposal, SIMPLEST[proposal], shape, temperature), pair, prompts,
                       new_tokens=new_tokens, seed=seed + place)
              for place, (shape, temperature, proposal) in enumerate(settings)]
    return pd.concat(frames, ignore_index=True) if frames else pd.DataFrame()


def expected(pair, prompts: PromptSet, shape_names: Sequence[str], temperatures: Sequence[float], *, new_tokens: int,
             seed: int) -> pd.DataFrame:
    """The table "expected": a row for each prompt, rule, shape and temperature above 0, for chained rounds over a text
    of `new_tokens` tokens that the pair's target wrote; no rows for a target alone.

    All rules and shapes share the texts of a temperature, so that they are compared on the same ones.
    """
    trees = {shape: named(shape) for shape in shape_names}
    deepest = max((tree.max_depth for tree in trees.values()), default=0)
    siblings = max((len(tree.children(node)) for tree in trees.values() for node in range(tree.size)), default=0)
    frames = []
    for temperature in filter(None, temperatures if pair.draft_model is not None else ()):
        trace = recording.record(
            pair.target, Competitors([pair], ["model"]), prompts.ids, names=prompts.names, kinds=prompts.kinds,
            max_new_tokens=new_tokens - 1, beyond=deepest + 1, temperature=temperature, siblings=siblings,
            eos_token_id=pair.eos_token_ids, seed=f"{seed}/{temperature}")
        frames += [rows.assign(temperature=temperature, shape=shape, budget=tree.budget)
                   for shape, tree in trees.items() for rows in _by_rule(trace, tree, pair.drafter_name)]
    if not frames:
        return pd.DataFrame()
    columns = ["rule", "shape", "temperature", "budget", "prompt", "kind", "stretch", "rounds", "accepted"]
    return pd.concat(frames, ignore_index=True)[columns].assign(pair=pair.name)


def _by_rule(trace: Trace, tree: Tree, drafter: str) -> Iterator[pd.DataFrame]:
    """`expectation.tally` of each rule whose expectation follows from the text, for one tree."""
    survive = {rule: expectation.survival(trace, tree, drafter, rule) for rule in BY_NODE}
    if tree.is_path:
        survive["block"] = expectation.block_survival(trace, tree.max_depth, drafter)
    for rule, chances in survive.items():
        yield expectation.tally(trace, chances).assign(rule=rule)
    replayed = acceptance.tally_walk(trace, acceptance.rounds_of(trace, tree, drafter))
    yield replayed.astype({"rounds": float, "accepted": float}).assign(rule="naive")


# ---------------------------------------------------------------------------------------------------------- one answer


def answer(pair, drafter: Drafter, prompts: PromptSet, shape: str, new_tokens: int) -> pd.DataFrame:
    """The table "answer", without the drafter's name: the rounds of the first prompt that has any, decoded greedily. A
    row for each node in order, and one for the bonus token, whose parent is the last accepted node. Tokens and context
    show white space by signs. No rows where each text ends before its first round.
    """
    walks = (walk(pair, drafter, ids, shape, new_tokens=new_tokens) for ids in prompts.ids)
    frames = []
    for step in next((steps for steps in walks if steps), []):
        before = "".join(text for text, _ in step.text[: len(step.text) - step.fresh])[-CONTEXT:]
        unknown = [np.nan] * step.tree.size
        frames.append(pd.DataFrame({
            "round": step.number, "node": range(step.tree.size + 1), "parent": step.parents,
            "rank": [*step.tree.rank.tolist(), 0], "token": [visible(token) for token in (*step.tokens, step.bonus)],
            "role": step.roles, "probability": [*(step.probabilities or unknown), np.nan],
            "target_probability": [*(step.target_probabilities or unknown), np.nan],
            "context": visible(before, CONTEXT)}))
    return pd.concat(frames, ignore_index=True).assign(pair=pair.name, shape=shape) if frames else pd.DataFrame()
