"""The ways that compete for a target in this project's loop: every drafter that it can have, with static trees and
growth rules, and each engine's methods with numbers of draft tokens.
"""

from collections.abc import Mapping, Sequence

import numpy as np

from lib.decoding.checks import window_refusal
from lib.drafters import vocabulary
from lib.drafters.drafter import Drafter
from lib.drafters.heads.files import NGRAMS
from lib.drafters.registry import DRAFT_MODEL, DRAFTERS, FOLDER, kinds_for, make, needs, parse
from lib.engines.driver import Engine
from lib.engines.methods import Way
from lib.replay import acceptance, simulated
from lib.replay.rank_paths import most_frequent_paths
from lib.replay.simulated import Recorded
from lib.replay.trace import Trace
from lib.study.bench import CHOOSING, Bench
from lib.trees import named, shapes
from lib.trees.growth import Growth
from lib.trees.names import FREQUENT
from lib.trees.tree import Tree

FAMILIES = ("independent:2", "independent:4")  # at every budget, besides chains
BUDGETS = (3, 7, 15, 31, 63)  # of trees that branch
LEAST_GROWN = 15  # nodes of trees that a rule grows
WIDTH, GAIN = 4, 0.05  # of grown trees: nodes expanded per level, and the gain below which OPT-Tree stops
TIMED_SHAPES = ("chain:1", "chain:4", "independent:4x4")  # whose drafting is timed, besides that of growth rules
MODEL = "model"  # the kind of drafter that a draft model is


def drafters_of(pairs: Sequence, specs: Sequence[str], longest: int) -> dict[str, Drafter]:
    """The drafters that compete for the target of these pairs, by spec, with the draft model's name where several pairs
    have one: those of `specs`, or all that it can have. One whose window is below `longest` tokens is left out, with
    the reason printed. ValueError for a spec that is unknown or that the target cannot have.
    """
    competing: dict[str, Drafter] = {}
    for spec in dict.fromkeys(specs or possible(pairs[0])):
        able = list(pairs) if DRAFT_MODEL in needs(spec) else [pairs[0]]
        for pair in able:
            name, drafter = spec if len(able) == 1 else f"{spec} ({pair.drafter_name})", make(spec, pair)
            if reason := window_refusal(drafter.window, longest):
                print(f"{name} is left out: {reason}")
            else:
                competing[name] = drafter
    return competing


def possible(pair) -> list[str]:
    """The specs of all drafters that a pair can have, with the heads and tables that ship for its target; a draft model
    over the target's most frequent tokens where a list of them ships.
    """
    names = kinds_for(pair)
    specs = [name for name in names if DRAFT_MODEL not in needs(name)]
    heads = [name for name in names if DRAFTERS[name].needs == FOLDER]
    specs += [f"combined:behind={name}" for name in heads if name != NGRAMS]  # which look up themselves
    reduced = f":vocabulary={vocabulary.REDUCED}" if vocabulary.ships(pair.target_name) else ""
    return specs + [name + reduced for name in names if DRAFT_MODEL in needs(name)]


def static_ways(bench: Bench, recorded: Recorded, drafters: Mapping[str, Drafter], most_nodes: int) -> list[Way]:
    """Each drafter with chains, fixed trees, and trees grown from the text of the choosing prompts, of at most so many
    nodes; chains alone where the target takes no other trees.
    """
    ways, choosing = [], recorded.trace.select(np.array(bench.rows(CHOOSING)))
    for name, drafter in drafters.items():
        depth = min(bench.longest, drafter.deepest or bench.longest)
        trees = {f"chain:{length}": shapes.chain(length) for length in range(1, min(depth, most_nodes) + 1)}
        for budget in (budget for budget in BUDGETS if budget <= most_nodes and not bench.backend.chains):
            fixed = {f"{family}@{budget}": named(f"{family}@{budget}") for family in FAMILIES}
            trees |= {label: tree for label, tree in fixed.items() if not tree.is_path and tree.max_depth <= depth}
            if name in choosing.ranks:
                full = sum(acceptance.RANKS**level for level in range(1, depth + 1))
                by_rank = acceptance.acceptance_by_rank(choosing, name)
                paths = most_frequent_paths(choosing, budget, name, most_depth=depth)
                trees |= {f"optimal@{budget}": shapes.optimal(by_rank, min(budget, full), depth),
                          f"{FREQUENT}@{budget}": Tree.from_choices(path for path, _ in paths)}
        ranked = ranked_name(name, drafter, choosing)
        ways += [_way(name, label, shape, drafter, ranked) for label, shape in trees.items()]
    return ways


def ranked_name(name: str, drafter: Drafter, trace: Trace) -> str:
    """The name under which a trace has the ranks that decide a drafter's static trees: its own, or that of the drafter
    behind its look-up; empty where it has to draft again, since it reads the text and may draft fewer tokens.
    """
    spec, of_pair, model = name.partition(" (")
    kind, options = parse(spec)
    if kind == "combined":
        reduced = f":vocabulary={options['vocabulary']}" if "vocabulary" in options else ""
        name = f"{options.get('behind', MODEL)}{reduced}{of_pair}{model}"
    return name if name in trace.ranks and not drafter.traits.reads_text else ""


def grown_ways(bench: Bench, drafters: Mapping[str, Drafter], most_nodes: int) -> list[Way]:
    """Each drafter with the growth rules that it can follow, where the target takes trees."""
    return [_way(name, f"{rule}@{budget}", named(f"{rule}@{budget}"), drafter) for name, drafter in drafters.items()
            if simulated.replayable(drafter) and not bench.backend.chains
            for rule in growth_rules(drafter, min(bench.longest, drafter.deepest or bench.longest))
            for budget in BUDGETS if LEAST_GROWN <= budget <= most_nodes]


def _way(drafter_name: str, label: str, shape: Tree | Growth, drafter: Drafter, ranked: str = "") -> Way:
    return Way(f"{drafter_name}, {label}", drafter_name, shape, label, drafter, ranked)


def growth_rules(drafter: Drafter, depth: int) -> list[str]:
    """Growth rules, without budgets, for a drafter's trees of so many levels; none where it cannot grow."""
    traits = drafter.traits
    if not traits.grows:
        return []
    if traits.per_depth or traits.one_pass:
        return [f"{'ddtree' if traits.per_depth else 'dyspec'}:{depth}"]
    return [f"opttree:{WIDTH},{depth},{GAIN}", f"eagle2:{WIDTH},{depth}"]


def engine_ways(engine: Engine, pairs: Mapping[str, object], lengths: Sequence[int]) -> list[Way]:
    """An engine's methods with these numbers of draft tokens. pairs: by kind of drafter, or name of a draft model."""
    return [method.way(pair, length) for kind, pair in pairs.items() for method in engine.methods
            if method.spec.partition(":")[0] == (kind if kind in DRAFTERS else MODEL)
            for length in lengths if length >= method.least]


def timed_ways(ways: Sequence[Way]) -> list[Way]:
    """The ways whose drafting is timed, for each method that drafts by forward passes: those of TIMED_SHAPES, and of
    each growth rule the smallest and the largest; of an engine's method its shortest and longest chain.
    """
    by_form: dict[tuple[str, type], list[Way]] = {}
    for way in sorted(ways, key=lambda way: way.nodes):
        by_form.setdefault((way.method, type(way.shape)), []).append(way)
    timed = []
    for (method, form), (smallest, *larger) in by_form.items():
        if form is Tree and smallest.weights is None:  # of this project's loop
            timed += [_way(method, name, named(name), smallest.drafter) for name in TIMED_SHAPES]
        else:
            timed += [smallest, *larger[-1:]]
    return timed
