"""The rows of the acceptance study that replay gives: each family at each budget, the choice of a tree, trees that grow
each round, and rules that sample their children, in expectation.

Static trees are grown from one half of a trace's prompts and replayed on the other. Rows are by judged prompt, so that
differences can be paired and have intervals.
"""

from collections.abc import Mapping, Sequence
from itertools import product

import numpy as np
import pandas as pd
from torch import Tensor

from lib.drafters.drafter import Drafter, TextDrafter
from lib.drafters import vocabulary as reduced
from lib.drafters.language_model import LanguageModelDrafter
from lib.lab import cluster
from lib.models.reduced import first_tokens
from lib.replay import acceptance, expectation, simulated
from lib.replay.acceptance import CONTINUATION, FREQUENT
from lib.replay.trace import Trace
from lib.studies.acceptance import recording
from lib.studies.acceptance.recording import halves
from lib.studies.acceptance.summary import GROWN
from lib.trees import growth, shapes
from lib.trees.growth.candidates import Growth
from lib.trees.tree import Tree

CHOSEN_FAMILIES = (FREQUENT, "optimal")  # compared by the text that they need: frequencies of paths, or 16 numbers
DRAWS = 5  # of choosing prompts
BESIDE = ("chain", "optimal")  # static families that grown trees are compared with
CONFIDENCES = (1.0, 0.6)  # temperatures of the drafting probabilities that are tried
BY_NODE = ("multi_step", "k_seq", "without_replacement")  # rules that decide node by node


def by_target(pairs: Sequence) -> dict[str, list]:
    """Pairs grouped by their target's name: one recording of a target serves all its drafters."""
    groups: dict[str, list] = {}
    for pair in pairs:
        groups.setdefault(pair.target_name, []).append(pair)
    return groups


def models(pairs: Sequence) -> pd.DataFrame:
    """The table "models": each model of the pairs with its size."""
    each = {name: model for pair in pairs for name, model in (
        (pair.target_name, pair.target), (pair.drafter_name, pair.draft_model)) if model is not None}
    rows = []
    for name, model in each.items():
        sizes = model.config.get_text_config()
        rows.append({"model": name, "parameters": model.num_parameters(), "layers": sizes.num_hidden_layers,
                     "hidden": sizes.hidden_size, "vocabulary": sizes.vocab_size,
                     "dtype": str(model.dtype).removeprefix("torch.")})
    return pd.DataFrame(rows)


def room(pairs: Sequence, *, new_tokens: int, live_tokens: int, live_shapes: Sequence[str],
         deepest: int = 0) -> int | None:
    """The tokens that a prompt may have so that its continuations fit the target's window, with room for the deepest
    tree and 1 token past the limit; None without a window. deepest: levels of trees that are replayed.
    """
    windows = [pair.window for pair in pairs if pair.window]
    live = max((shapes.parse(shape).max_depth for shape in live_shapes), default=0)
    return min(windows) - max(new_tokens + deepest, live_tokens + live) - 1 if windows else None


# -------------------------------------------------------------------------------------------------------------- shapes


def forest(choosing: Trace, drafter: str, families: Sequence[str],
           budgets: Sequence[int]) -> list[tuple[str, int, Tree]]:
    """Each family at each budget; grown families come from the choosing part of the trace."""
    return [(family, budget, acceptance.family_tree(family, budget, choosing, drafter))
            for family in families for budget in budgets]


def replay_all(recorded: Trace, families: Sequence[str], budgets: Sequence[int], depth_budget: int,
               drafters: Mapping[str, object] = {},
               prompts: recording.Prompts | None = None) -> dict[str, pd.DataFrame]:
    """Tables of one trace: `acceptance`, of its drafters `rank`, and at one budget `depth` and `nodes`.

    drafters: by name (see `recording.Competitors`); those that read the text draft again, and those without ranks have
    no families that are grown from ranks. prompts: those that the trace was recorded of (see `recording.texts_of`).
    """
    choosing, judged = halves(recorded)
    chosen = [] if prompts is None else [prompts.ids[row] for row in np.flatnonzero(~prompts.choosing)]
    tables: dict[str, list[pd.DataFrame]] = {"acceptance": [], "depth": [], "nodes": [], "rank": []}
    for name in dict.fromkeys([*recorded.ranks, *drafters]):
        ranked = name in recorded.ranks
        trees = forest(choosing, name, [each for each in families if ranked or each not in GROWN], budgets)
        tables["acceptance"].append(_accepted(judged, chosen, name, drafters.get(name), trees))
        for family, budget, tree in trees if ranked else ():
            if budget == depth_budget:
                setting = dict(family=family, budget=budget, drafter=name, **_about(recorded))
                rounds = acceptance.rounds_of(judged, tree, name)
                tables["depth"].append(acceptance.by_depth(judged, tree, rounds).assign(**setting))
                tables["nodes"].append(acceptance.by_node(tree, rounds, judged.loops).assign(**setting))
        if ranked:
            tables["rank"].append(acceptance.by_rank(judged, name).assign(drafter=name, **_about(recorded)))
    return {name: pd.concat(frames, ignore_index=True) for name, frames in tables.items()}


def chains(recorded: Trace, lengths: Sequence[int], drafters: Mapping[str, object],
           prompts: recording.Prompts) -> pd.DataFrame:
    """The table "chains": chains of these lengths on the judged half of a trace; the rest as `replay_all` takes it."""
    judged, texts = halves(recorded)[1], [prompts.ids[row] for row in np.flatnonzero(~prompts.choosing)]
    trees = [("chain", length, shapes.chain(length)) for length in lengths]
    rows = [_accepted(judged, texts, name, drafters.get(name), trees)
            for name in dict.fromkeys([*recorded.ranks, *drafters])]
    return pd.concat(rows, ignore_index=True).drop(columns=["family", "depth"])


def _accepted(judged: Trace, texts: Sequence[Tensor], name: str, drafter: object,
              trees: Sequence[tuple[str, int, Tree]]) -> pd.DataFrame:
    """`acceptance.evaluate`, by drafting again where the drafter reads the text or has no ranks; texts: the prompts."""
    if name in judged.ranks and not isinstance(drafter, TextDrafter):
        return acceptance.evaluate(judged, name, trees)
    return _drafted_again(simulated.Recorded(judged, texts), name, drafter, trees)


def _drafted_again(judged: simulated.Recorded, name: str, drafter: Drafter,
                   trees: Sequence[tuple[str, int, Tree]]) -> pd.DataFrame:
    """`acceptance.evaluate` of a drafter that reads the text, which may have no token for some nodes of a tree."""
    frames = []
    for family, budget, tree in trees:
        rounds = simulated.rounds(judged, drafter, tree)
        frames.append(acceptance.tally_walk(judged.trace, rounds).assign(
            family=family, budget=budget, depth=tree.max_depth))
    return pd.concat(frames, ignore_index=True).assign(drafter=name, **_about(judged.trace))


def repetition(traces: Sequence[Trace]) -> pd.DataFrame:
    """The table `repetition`: for each continuation whether and where it begins to loop."""
    continuations = [recorded for recorded in traces if recorded.about["protocol"] == CONTINUATION]
    return pd.concat([acceptance.repetition(recorded).assign(**_about(recorded)) for recorded in continuations],
                     ignore_index=True)


def vocabulary(traces: Sequence[Trace]) -> pd.DataFrame:
    """The table `vocabulary`: for each continuation of a target whose frequent tokens ship, how many of its tokens
    before a loop are among the first `vocabulary.REDUCED` of them.
    """
    frames = []
    for recorded in traces:
        if recorded.about["protocol"] == CONTINUATION and reduced.ships(recorded.about["target"]):
            known = reduced.shipped(recorded.about["target"], reduced.REDUCED).numpy()
            written = [row[1 : end + 1] for row, end in zip(recorded.tokens, recorded.loops)]
            frames.append(pd.DataFrame(dict(
                prompt=recorded.prompts, kind=recorded.kinds, size=reduced.REDUCED, tokens=list(map(len, written)),
                covered=[int(np.isin(row, known).sum()) for row in written])).assign(
                    target=recorded.about["target"], temperature=recorded.about["temperature"]))
    return pd.concat(frames, ignore_index=True) if frames else pd.DataFrame()


def headline(traces: Sequence[Trace], target: str) -> Trace:
    """The target's first trace by the protocol of headlines: real-text starts, or for chat models continuation."""
    own = [recorded for recorded in traces if recorded.about["target"] == target]
    return next((recorded for recorded in own if acceptance.in_real_text(recorded)), own[0])


def _about(trace: Trace) -> dict[str, object]:
    return {key: trace.about[key] for key in ("target", "protocol", "temperature")}


# ------------------------------------------------------------------------------------------------------------- choices


def choices(traces: Sequence[Trace], budget: int, generator: np.random.Generator) -> pd.DataFrame:
    """The table `choices`: how much text a tree of `budget` nodes needs, for the drafters of each target's headline
    trace and each of CHOSEN_FAMILIES.
    """
    frames = []
    for target in dict.fromkeys(recorded.about["target"] for recorded in traces):
        recorded = headline(traces, target)
        frames += [choose_from_prompts(*halves(recorded), drafter, budget, generator) for drafter in recorded.ranks]
    return pd.concat(frames, ignore_index=True)


def choose_from_prompts(choosing: Trace, judged: Trace, drafter: str, budget: int, generator: np.random.Generator, *,
                        draws: int = DRAWS) -> pd.DataFrame:
    """Rows of each family's tree grown from 1, 2, 4, ... and all choosing prompts, `draws` nested draws of them each.

    A draw puts the prompts in random order, and its subsets are the beginnings; all prompts give one tree only. Rows of
    one judged prompt stay together in all draws, so that intervals from resampling prompts hold for the mean of the
    draws. positions: of the text that the tree was chosen from, before a loop.
    """
    names = sorted(set(choosing.prompts))
    orders = [generator.permutation(names).tolist() for _ in range(draws)]
    pieces = [(draw, order[:count]) for draw, order in enumerate(orders)
              for count in (doubled(len(names)) if draw == 0 else doubled(len(names))[:-1])]
    return pd.concat(cluster.spread(_chosen_from, pieces, choosing, judged, drafter, budget), ignore_index=True)


def _chosen_from(piece: tuple[int, list[str]], choosing: Trace, judged: Trace, drafter: str,
                 budget: int) -> pd.DataFrame:
    """The rows of a draw's number and some of its prompts."""
    draw, prompts = piece
    text = choosing.select(np.isin(np.array(choosing.prompts), prompts))
    rows = acceptance.evaluate(judged, drafter, forest(text, drafter, CHOSEN_FAMILIES, [budget]))
    return rows.drop(columns="depth").assign(
        draw=draw, prompts=len(prompts), positions=int(np.minimum(text.loops, text.lengths).sum()))


def doubled(prompts: int) -> list[int]:
    """1, 2, 4, ... below the number of prompts, and that number."""
    return [2**step for step in range(prompts.bit_length()) if 2**step < prompts] + [prompts]


# --------------------------------------------------------------------------------------------------------- grown trees


def as_drafter(model, vocabulary: int | None = None, temperature: float = 1.0) -> Drafter:
    """The drafter of a language model at a temperature, without the padding of its vocabulary; a drafter as it is."""
    if isinstance(model, Drafter):
        return model
    return LanguageModelDrafter(first_tokens(model, vocabulary) if vocabulary else model, temperature=temperature)


def evaluate_grown(recorded: simulated.Recorded, name: str, model, rules: Sequence[tuple[str, int, Growth]],
                   vocabulary: int | None = None, confidence: float = 1.0) -> pd.DataFrame:
    """The columns of `acceptance.evaluate`, `calls` and `confidence` for each (family, budget, rule) of one drafter.

    calls: the drafter's forward passes in the rounds; depth: that of the deepest tree that grew.
    name: the drafter's in the trace. model: a language model, or a drafter of heads as it is. vocabulary: the
    target's, where the model's is larger. confidence: the temperature of the probabilities by which trees grow.
    """
    drafter = as_drafter(model, vocabulary, confidence)
    frames = []
    for family, budget, rule in rules:
        rounds = simulated.rounds(recorded, drafter, rule)
        rows = acceptance.tally_walk(recorded.trace, rounds, calls=rounds.draft_calls)
        frames.append(rows.assign(family=family, budget=budget, depth=rounds.depth.max(initial=0)))
    return pd.concat(frames, ignore_index=True).assign(drafter=name, confidence=confidence, **_about(recorded.trace))


def evaluate_static(trace: Trace, name: str, trees: Sequence[tuple[str, int, Tree]]) -> pd.DataFrame:
    """`acceptance.evaluate` with `calls`: a static tree costs one forward pass for each of its levels; its confidence
    is missing.
    """
    rows = acceptance.evaluate(trace, name, trees)
    return rows.assign(calls=rows["rounds"] * rows["depth"], confidence=np.nan)


def compare_grown(recorded: Trace, name: str, drafters: Mapping[str, object], prompts: recording.Prompts, *,
                  families: Sequence[str], rules: Sequence[str], budgets: Sequence[int], vocabulary: int | None = None,
                  confidences: Sequence[float] = CONFIDENCES) -> pd.DataFrame:
    """Static families and growth rules (names without a budget) at each budget, of one of the drafters, on the trace's
    judged prompts.

    prompts: those that the trace was recorded of (see `recording.texts_of`). No rows for drafters without
    probabilities over which trees grow.
    confidences: temperatures of the drafter's probabilities, of which each rule and budget takes the best on the
    choosing prompts, from which static trees are grown too.
    """
    if isinstance(drafters[name], TextDrafter):
        return pd.DataFrame()
    choosing, judged = halves(recorded)
    static = evaluate_static(judged, name, forest(choosing, name, families, budgets))
    grown = cluster.spread(_grown, product(rules, budgets), recorded, name, drafters, prompts, vocabulary, confidences)
    return pd.concat([static, *grown], ignore_index=True)


def _grown(setting: tuple[str, int], recorded: Trace, name: str, drafters: Mapping[str, object],
           prompts: recording.Prompts, vocabulary: int | None, confidences: Sequence[float]) -> pd.DataFrame:
    """The rows of one rule and budget, at the temperature that was best on the choosing prompts."""
    rows = (np.flatnonzero(prompts.choosing), np.flatnonzero(~prompts.choosing))
    choosing, judged = (simulated.Recorded(half, [prompts.ids[row] for row in own])
                        for half, own in zip(halves(recorded), rows))
    wanted = [(*setting, growth.at_budget(*setting))]
    tried = (evaluate_grown(choosing, name, drafters[name], wanted, vocabulary, confidence)
             for confidence in confidences)
    best = max(tried, key=_length)["confidence"].iloc[0]
    return evaluate_grown(judged, name, drafters[name], wanted, vocabulary, best)


def _length(rows: pd.DataFrame) -> float:
    """The acceptance length before loops."""
    before = rows[rows["stretch"] == "before"]
    return before["accepted"].sum() / max(1, before["rounds"].sum())


# --------------------------------------------------------------------------------------------------------- expectation


def expected(pair, prompts: recording.Prompts, shape_names: Sequence[str], temperatures: Sequence[float],
             new_tokens: int, seed: int) -> pd.DataFrame:
    """The table `expected`: a row for each prompt, rule, shape and temperature above 0, for chained rounds over a text
    of `new_tokens` tokens that the pair's target wrote; no rows for a target alone.

    All rules and shapes share the texts of a temperature, so that they are compared on the same ones.
    """
    trees = {shape: shapes.parse(shape) for shape in shape_names}
    deepest = max((tree.max_depth for tree in trees.values()), default=0)
    siblings = max((len(tree.children(node)) for tree in trees.values() for node in range(tree.size)), default=0)
    frames = []
    for temperature in filter(None, temperatures if pair.draft_model is not None else ()):
        recorded = recording.record_pair(
            pair, prompts, max_new_tokens=new_tokens - 1, beyond=deepest + 1, temperature=temperature,
            siblings=siblings, seed=f"{seed}/{temperature}", about={"protocol": CONTINUATION})
        frames += [rows.assign(temperature=temperature, shape=shape, budget=tree.budget)
                   for shape, tree in trees.items() for rows in _by_rule(recorded, tree, pair.drafter_name)]
    if not frames:
        return pd.DataFrame()
    columns = ["rule", "shape", "temperature", "budget", "prompt", "kind", "stretch", "rounds", "accepted"]
    return pd.concat(frames, ignore_index=True)[columns].assign(pair=pair.name)


def _by_rule(recorded: Trace, tree: Tree, drafter: str) -> list[pd.DataFrame]:
    """`expectation.tally` of each rule whose expectation follows from the text, for one tree."""
    survive = {rule: expectation.survival(recorded, tree, drafter, rule) for rule in BY_NODE}
    if tree.max_depth == tree.budget:
        survive["block"] = expectation.block_survival(recorded, tree.max_depth, drafter)
    found = [expectation.tally(recorded, chances).assign(rule=rule) for rule, chances in survive.items()]
    rounds = acceptance.rounds_of(recorded, tree, drafter)
    replayed = acceptance.tally_walk(recorded, rounds).assign(rule="naive")
    return [*found, replayed.astype({"rounds": float, "accepted": float})[found[0].columns]]
