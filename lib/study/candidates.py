"""The ways that compete for a target in this project's loop: every drafter that it can have, with static trees and growth
rules, and each engine's methods with numbers of draft tokens.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from lib.decoding.checks import window_refusal
from lib.drafters import vocabulary
from lib.drafters.drafter import Drafter
from lib.drafters.heads.files import NGRAMS
from lib.drafters.registry import DRAFT_MODEL, DRAFTERS, FOLDER, kinds_for, make, needs, parse
from lib.engines.methods import Way
from lib.engines.registry import Served
from lib.replay import acceptance, simulated
from lib.replay.acceptance import FREQUENT
from lib.replay.rank_paths import most_frequent_paths
from lib.replay.trace import Trace
from lib.trees import named, shapes
from lib.trees.growth import Growth
from lib.trees.tree import Tree

FAMILIES = ("independent:2", "independent:4")  # at every budget, besides chains
GROWN_FAMILIES = ("optimal", FREQUENT)  # of trees that are grown from a trace
BUDGETS = (3, 7, 15, 31, 63)
LEAST_GROWN = 15  # nodes of trees that a rule grows
WIDTH, GAIN = 4, 0.05  # of grown trees: nodes expanded per level, and the gain below which OPT-Tree stops
TIMED_SHAPES = ("chain:1", "chain:4", "independent:4x4")  # whose drafting is timed, besides that of growth rules
MODEL = "model"  # the kind of drafter that a draft model is


@dataclass(frozen=True)
class Limits:
    """The largest tree: drafted nodes, and levels. chains: whether only chains are tried."""

    nodes: int = 63
    depth: int = 8
    chains: bool = False

    @property
    def budgets(self) -> list[int]:
        """The budgets of trees that branch."""
        return sorted({*(n for n in BUDGETS if n <= self.nodes), self.nodes})


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


def static_ways(drafters: Mapping[str, Drafter], limits: Limits, choosing: Trace) -> list[Way]:
    """Each drafter with chains, fixed trees, and trees grown from the choosing part of a trace."""
    ways = []
    for name, drafter in drafters.items():
        depth = min(limits.depth, drafter.deepest or limits.depth)
        trees = fixed(Limits(limits.nodes, depth, limits.chains))
        if name in choosing.ranks and not limits.chains:
            trees |= {f"{family}@{budget}": from_trace(choosing, name, family, budget, depth)
                      for budget in limits.budgets for family in GROWN_FAMILIES}
        ways += [_way(name, label, shape, drafter, ranked_name(name, drafter, choosing)) for label, shape in trees.items()]
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


def grown_ways(drafters: Mapping[str, Drafter], limits: Limits, leading: Sequence[str]) -> list[Way]:
    """The leading drafters with the growth rules that they can follow."""
    return [_way(name, f"{rule}@{budget}", named(f"{rule}@{budget}"), drafters[name])
            for name in leading if simulated.replayable(drafters[name]) and not limits.chains
            for rule in growth_rules(drafters[name], min(limits.depth, drafters[name].deepest or limits.depth))
            for budget in limits.budgets if budget >= LEAST_GROWN]


def _way(drafter_name: str, label: str, shape: Tree | Growth, drafter: Drafter, ranked: str = "") -> Way:
    return Way(f"{drafter_name}, {label}", drafter_name, shape, label, drafter, ranked)


def fixed(limits: Limits) -> dict[str, Tree]:
    """Chains of every length, and the families of FAMILIES at every budget."""
    trees = {f"chain:{length}": shapes.chain(length) for length in range(1, min(limits.depth, limits.nodes) + 1)}
    for family in () if limits.chains else FAMILIES:
        for budget in limits.budgets:
            tree = named(f"{family}@{budget}")
            if not tree.is_path and tree.max_depth <= limits.depth:
                trees[f"{family}@{budget}"] = tree
    return trees


def from_trace(trace: Trace, drafter: str, family: str, budget: int, depth: int) -> Tree:
    """The tree of a family for a trace: the most frequent rank paths, or Sequoia's."""
    if family == FREQUENT:
        paths = most_frequent_paths(trace, budget, drafter, most_depth=depth)
        return Tree.from_choices(path for path, _ in paths)
    most = sum(acceptance.RANKS**level for level in range(1, depth + 1))
    return shapes.optimal(acceptance.acceptance_by_rank(trace, drafter), min(budget, most), depth)


def growth_rules(drafter: Drafter, depth: int) -> list[str]:
    """Growth rules, without budgets, for a drafter's trees of so many levels; none where it cannot grow."""
    traits = drafter.traits
    if not traits.grows:
        return []
    if traits.per_depth or traits.one_pass:
        return [f"{'ddtree' if traits.per_depth else 'dyspec'}:{depth}"]
    return [f"opttree:{WIDTH},{depth},{GAIN}", f"eagle2:{WIDTH},{depth}"]


def engine_ways(served: Served, pairs: Mapping[str, object], lengths: Sequence[int]) -> list[Way]:
    """The methods of an engine for these drafters, with these numbers of draft tokens. pairs: by kind of drafter, or by
    the name of a draft model.
    """
    return [method.way(pair, length) for kind, pair in pairs.items()
            for method in served.methods(kind if kind in DRAFTERS else MODEL) for length in lengths]


def timed_ways(ways: Sequence[Way]) -> list[Way]:
    """The ways whose drafting is timed, for each method that drafts by forward passes: those of TIMED_SHAPES, and of
    each growth rule the smallest and the largest; of an engine's method its shortest and longest chain.
    """
    by_method: dict[str, list[Way]] = {}
    for way in ways:
        if way.drafter is not None:
            by_method.setdefault(way.method, []).append(way)
    return [way for ways_of_one in by_method.values() for way in _timed_of(ways_of_one)]


def _timed_of(ways: Sequence[Way]) -> Iterator[Way]:
    """Those of one method."""
    ordered = sorted(ways, key=lambda way: way.nodes)
    rules = [way for way in ordered if not isinstance(way.shape, Tree)]
    if ordered[0].setting.method != "plain":
        yield from {way.name: way for way in (ordered[0], ordered[-1])}.values()
        return
    for name in TIMED_SHAPES:
        shape = named(name)
        yield _way(ways[0].method, name, shape, ways[0].drafter)
    for rule in dict.fromkeys(type(way.shape) for way in rules):
        of_rule = [way for way in rules if type(way.shape) is rule]
        yield from {way.name: way for way in (of_rule[0], of_rule[-1])}.values()
