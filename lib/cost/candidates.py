"""What competes for a target: every drafter that it can have, with static shapes and growth rules, and how many tokens
per round each of them is worth on prompts whose greedy continuations are recorded once.

Acceptance is exact by replay where ranks or the text decide a draft (see `replay`), and live on some of the prompts
elsewhere. Rounds within loops do not count.
"""

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np
import pandas as pd

from lib.attention.registration import takes_chains
from lib.engines.settings import is_chain
from lib.cost.judging import log_tokens
from lib.cost.round_cost import RoundCost, before_steps, widths
from lib.cost.ways import ours
from lib.decoding import loop
from lib.decoding.checks import window_refusal
from lib.drafters import vocabulary
from lib.drafters.drafter import Drafter
from lib.drafters.registry import BY_RANKS
from lib.drafters.heads.files import NGRAMS
from lib.drafters.language_model import LanguageModelDrafter
from lib.drafters.registry import DRAFT_MODEL, DRAFTERS, FOLDER, kinds_for, make, needs
from lib.lab import stats
from lib.replay import acceptance, recording, simulated
from lib.replay.rank_paths import most_frequent_paths
from lib.replay.simulated import Recorded
from lib.replay.trace import Trace
from lib.trees import named, shapes
from lib.trees.growth import Costs, Growth
from lib.trees.tree import Tree

FAMILIES = ("independent:2", "independent:4")  # at every budget, besides chains
OPTIMAL, FREQUENT = "optimal", acceptance.FREQUENT  # families that are grown from a trace
LIVE_FAMILIES = ("kary:2", "kary:4")
LIVE_BUDGETS, LIVE_CHAINS, LIVE_PROMPTS = (7, 15, 31), (1, 3, 7), 8
WIDTH, GAIN = 4, 0.05  # of grown trees: nodes expanded per level, and the gain below which OPT-Tree stops
GROWN_BUDGETS = range(7, 64)  # of growth rules
MOST_AUTOMATIC = 32  # nodes of a tree whose budget is chosen in each round


@dataclass(frozen=True)
class Limits:
    """The largest tree allowed: drafted nodes, and depth (each level is one more forward pass of the drafter); batches:
    the batch sizes whose costs decide the budgets that are tried. chains: whether only chains are tried.
    """

    nodes: int = 64
    depth: int = 8
    batches: Sequence[int] = (1,)
    chains: bool = False

    def __post_init__(self):
        if self.nodes < 1 or self.depth < 1:
            raise ValueError(f"limits are {self.nodes} nodes and depth {self.depth}: give 1 or more")

    @property
    def budgets(self) -> list[int]:
        """The budgets before a step of a check's cost at one of the batch sizes."""
        return sorted({nodes for batch in self.batches for nodes in before_steps(batch, self.nodes)} - {0})


@dataclass(frozen=True)
class Entrant:
    """A drafter that competes: a spec of `drafters.make`, its pair, and a drafter of both.

    name: the spec, with the name of the draft model where several pairs have one.
    """

    name: str
    spec: str
    pair: object
    drafter: Drafter


@dataclass(frozen=True)
class Candidate:
    """A drafter with a shape or growth rule, and what it did on the recorded prompts.

    label: of the shape. accepted, rounds: int64[P], of these prompts (`stats.unit`). sizes: float[n + 1], the share of
    rounds in which 0 .. n nodes were drafted. passes: forward passes of a round in which the drafter drafts, by the
    nodes per row that they take; calling: the share of them that a row needs on average, below 1 where a look-up drafts
    some rounds. drafting: seconds of drafting where it was timed by itself.
    """

    entrant: Entrant
    label: str
    shape: Tree | Growth
    prompts: Sequence[str]
    accepted: np.ndarray
    rounds: np.ndarray
    sizes: np.ndarray
    passes: Mapping[int, float] = field(default_factory=dict)
    calling: float = 1.0
    drafting: float | None = None

    @property
    def name(self) -> str:
        """Drafter and shape."""
        return f"{self.entrant.name}, {self.label}"

    @property
    def tokens(self) -> float:
        """Tokens per round, the bonus token included."""
        return 1 + float(self.accepted.sum() / self.rounds.sum())

    @property
    def is_chain(self) -> bool:
        """Whether the shape is a path of favourites."""
        return is_chain(self.shape)

    @property
    def branches(self) -> bool:
        """Whether the shape has, or may have, more than one path."""
        return not isinstance(self.shape, Tree) or len(self.shape.leaves) > 1

    def tokens_on(self, names: Sequence[str]) -> np.ndarray:
        """float[P], tokens per round on prompts of these names; NaN where it has no rounds."""
        known = dict(zip(self.prompts, 1 + self.accepted / self.rounds))
        return np.array([known.get(stats.unit(name), float("nan")) for name in names])

    def tokens_in(self, asked, batch: int) -> float:
        """Tokens per round and row in batches of these prompts (see `judging.log_tokens`)."""
        return float(np.exp(log_tokens(self.tokens_on(asked.names)[None], asked.kinds, batch)[0]))

    def seconds(self, price: RoundCost, batch: int = 1) -> float:
        """The mean seconds of its rounds: a check is as wide as the largest draft of the batch, and one without drafts
        costs a plain round; a batch drafts where one of its rows does. Growing takes what a tree of the whole budget
        takes, where that was timed.
        """
        if self.drafting is not None:
            drafting = self.drafting
        elif price.grown and isinstance(self.shape, Growth):
            drafting = price.grown(self.shape.budget) * bool(self.passes)
        else:
            whole = price.once * bool(self.passes) + sum(n * price.level(width) for width, n in self.passes.items())
            drafting = whole * (1 - (1 - self.calling) ** batch)
        checks = np.concatenate([[price.plain], np.atleast_1d(price.check(np.arange(1, len(self.sizes))))])
        largest = np.diff(np.cumsum(self.sizes) ** batch, prepend=0.0)
        return float(drafting + largest @ checks[: len(self.sizes)])

    def speedup(self, price: RoundCost, batch: int = 1) -> float:
        """Predicted speed over plain decoding in the same loop."""
        return self.tokens * price.plain / self.seconds(price, batch)


def entrants(pairs: Sequence, specs: Sequence[str] = ()) -> list[Entrant]:
    """The drafters that compete for the target of these pairs: those of `specs`, or all that it can have.

    A drafter that needs a draft model competes once for each pair. ValueError for a spec that is unknown or that the
    target cannot have.
    """
    competing = []
    for spec in dict.fromkeys(specs or possible(pairs[0])):
        able = list(pairs) if DRAFT_MODEL in needs(spec) else [pairs[0]]
        competing += [Entrant(spec if len(able) == 1 else f"{spec} ({pair.drafter_name})", spec, pair, make(spec, pair))
                      for pair in able]
    return competing


def within(competing: Sequence[Entrant], longest: int) -> list[Entrant]:
    """The entrants that can draft in texts of up to `longest` tokens; the reason is printed for each of the others."""
    reasons = {entrant.name: window_refusal(entrant.drafter.window, longest) for entrant in competing}
    for name, reason in reasons.items():
        if reason:
            print(f"{name} is left out: {reason}")
    return [entrant for entrant in competing if not reasons[entrant.name]]


def possible(pair) -> list[str]:
    """The specs of all drafters that a pair can have, with the heads and tables that ship for its target; a draft model
    over the target's most frequent tokens where a list of them ships.
    """
    names = kinds_for(pair)
    specs = [name for name in names if DRAFT_MODEL not in needs(name)]
    heads = [name for name in names if DRAFTERS[name].needs == FOLDER]
    specs += [f"combined:behind={name}" for name in heads if name != NGRAMS]  # which look up themselves
    known = f":vocabulary={vocabulary.REDUCED}" if vocabulary.ships(pair.target_name) else ""
    return specs + [name + known for name in names if DRAFT_MODEL in needs(name)]


def record(pair, competing: Sequence[Entrant], prompts, new_tokens: int, deepest: int) -> Recorded:
    """The target's greedy continuations of prompts, with the ranks of all drafters that ranks decide, by their names.

    prompts: with names, kinds, ids, as in `models.prompts.PromptSet`. deepest: levels of the deepest tree.
    """
    read = {one.name: one.drafter.model if isinstance(one.drafter, LanguageModelDrafter) else one.drafter
            for one in competing if one.drafter.traits.replay == BY_RANKS}
    trace = recording.record(
        pair.target, read, prompts.ids, names=prompts.names, kinds=prompts.kinds, max_new_tokens=new_tokens - 1,
        beyond=deepest + 1, ahead=deepest, eos_token_id=pair.eos_token_ids,
        labels={"target": pair.target_name, "chains": takes_chains(pair.target.config)})
    return Recorded(trace, prompts.ids)


def static(entrant: Entrant, recorded: Recorded, limits: Limits) -> Iterator[Candidate]:
    """The drafter with static shapes within the limits, judged by replay: of ranks, or by drafting again where it reads
    the text, or stands behind a look-up. Trees that are grown from text are judged on other text. Nothing for others.
    """
    trace, drafter = recorded.trace, entrant.drafter
    if entrant.name not in trace.ranks:
        for label, tree in _fixed(limits).items() if simulated.replayable(drafter) else ():
            yield _drafted_again(entrant, recorded, label, tree)
        return
    depth, parts = min(limits.depth, drafter.deepest or limits.depth), folds(trace)
    forest = [(label, tree, [(tree, trace)]) for label, tree in _fixed(replace(limits, depth=depth)).items()]
    for budget in sorted({*limits.budgets, limits.nodes}):
        for family in () if limits.chains else (OPTIMAL, FREQUENT):
            tree, *grown = (from_data(part, entrant.name, family, Limits(budget, depth))
                            for part in (trace, *(grow for grow, _ in parts)))
            forest.append((f"{family}@{budget}", tree, zip(grown, (judge for _, judge in parts))))
    for label, tree, judged in forest:
        tallies = [acceptance.tally_walk(part, acceptance.rounds_of(part, shape, entrant.name))
                   for shape, part in judged]
        walk = (simulated.rounds(recorded, entrant.drafter, tree) if drafter.traits.reads_text else
                acceptance.rounds_of(trace, tree, entrant.name))
        sizes = walk.drafted[_counted(trace, walk.rows, walk.starts)]
        calling = 1.0 if drafter.traits.reads_text else float((sizes > 0).sum() / max(1, len(sizes)))
        passes = {} if drafter.traits.reads_text else Counter(widths(tree).tolist())
        yield _candidate(entrant, label, tree, tallies, sizes, passes, calling)


def live(entrant: Entrant, recorded: Recorded, limits: Limits, new_tokens: int, *,
         generate: Callable = loop.generate) -> Iterator[Candidate]:
    """The drafter with static shapes within the limits, decoded in one batch on some prompts, evenly spread."""
    prompts, trace = recorded.prompts, recorded.trace
    some = np.unique(np.linspace(0, len(prompts) - 1, LIVE_PROMPTS).astype(int))
    for label, tree in _fixed(limits, LIVE_CHAINS, LIVE_FAMILIES, LIVE_BUDGETS).items():
        drafter = make(entrant.spec, entrant.pair)
        done = ours(entrant.pair, drafter, tree, new_tokens, generate)([prompts[row] for row in some])
        if not done.rounds:
            return
        rows, starts, accepted, drafted, calls = (np.array(column, dtype=np.int64) for column in zip(*(
            (some[one.row], one.position - 1, one.accepted, one.drafted, one.draft_calls) for one in done.rounds)))
        counted = _counted(trace, rows, starts)
        passes = {1: float(calls[counted].mean())} if calls.any() else {}
        tally = acceptance.tally(trace.prompts, trace.kinds, rows, starts >= trace.loops[rows], {"accepted": accepted})
        yield _candidate(entrant, label, tree, [tally], drafted[counted], passes)


def from_data(part: Trace, drafter: str, family: str, limits: Limits) -> Tree:
    """The tree of a family for a trace, within the limits: the most frequent rank paths, or Sequoia's."""
    if family == FREQUENT:
        paths = most_frequent_paths(part, limits.nodes, drafter, most_depth=limits.depth)
        return Tree.from_choices(path for path, _ in paths)
    most = sum(acceptance.RANKS**level for level in range(1, limits.depth + 1))
    return shapes.optimal(acceptance.acceptance_by_rank(part, drafter), min(limits.nodes, most), limits.depth)


def folds(trace: Trace) -> list[tuple[Trace, Trace]]:
    """(to grow trees from, to judge them on): every second prompt of each kind against the others, both ways."""
    units = [stats.unit(name) for name in trace.prompts]
    names = sorted(dict.fromkeys(zip(trace.kinds, units)), key=lambda name: name[0])  # stable within a kind
    in_odd = np.isin(np.array(units), [prompt for _, prompt in names[1::2]])
    if not in_odd.any():
        return [(trace, trace)]
    halves = trace.select(in_odd), trace.select(~in_odd)
    return [halves, halves[::-1]]


def _fixed(limits: Limits, lengths: Sequence[int] = (), families: Sequence[str] = FAMILIES,
           budgets: Sequence[int] = ()) -> dict[str, Tree]:
    """Chains of these lengths and families at these budgets, within the limits; by default all lengths and budgets."""
    trees = {f"chain:{length}": shapes.chain(length) for length in lengths or range(1, limits.depth + 1)}
    trees |= {f"{family}@{n}": tree for family in families for n in budgets or sorted({*limits.budgets, limits.nodes})
              if (tree := named(f"{family}@{n}")).max_depth < n}  # else it is a chain
    return {label: tree for label, tree in trees.items() if tree.budget <= limits.nodes
            and tree.max_depth <= limits.depth and (not limits.chains or tree.is_path)}


def grown(entrant: Entrant, recorded: Recorded, limits: Limits) -> Iterator[Candidate]:
    """The drafter with growth rules within the limits, judged by drafting again; nothing where it cannot grow trees."""
    for rules in _fitting_rules(entrant.drafter, limits):
        for rule in rules:
            yield _drafted_again(entrant, recorded, rule.name, rule)


def growth_rules(drafter: Drafter, depth: int) -> list[str]:
    """Growth rules, without budgets, for a drafter's trees of at most so many levels; none where it cannot grow."""
    traits = drafter.traits
    if not traits.grows:
        return []
    depth = min(depth, drafter.deepest or depth)
    if traits.per_depth or traits.one_pass:
        return [f"{'ddtree' if traits.per_depth else 'dyspec'}:{depth}"]
    return [f"opttree:{WIDTH},{depth},{GAIN}", f"eagle2:{WIDTH},{depth}"]


def timed_rules(drafter: Drafter, limits: Limits) -> list[str]:
    """The growth rules whose drafting is timed: the first one that fits, at its smallest and largest budget within the
    limits. Empty where no grown tree is tried.
    """
    first = next(filter(None, _fitting_rules(drafter, limits)), [])
    return list(dict.fromkeys(rule.name for rule in (*first[:1], *first[-1:])))


def _fitting_rules(drafter: Drafter, limits: Limits) -> list[list[Growth]]:
    """Of each growth rule those with a budget within the limits; none where its trees cannot be drafted again."""
    rules = growth_rules(drafter, limits.depth) if simulated.replayable(drafter) and not limits.chains else []
    return [[named(f"{name}@{budget}") for budget in limits.budgets if budget in GROWN_BUDGETS] for name in rules]


def automatic(entrant: Entrant, recorded: Recorded, limits: Limits, price: RoundCost,
              batch: int) -> Iterator[Candidate]:
    """The drafter with trees whose size these costs of a batch decide in each round (SMART), judged as `grown`, where
    each level takes a forward pass.
    """
    traits = entrant.drafter.traits
    if limits.chains or not simulated.replayable(entrant.drafter) or not traits.grows or traits.one_pass:
        return
    nodes = min(limits.nodes, MOST_AUTOMATIC)
    checks = np.append(price.plain, price.check(np.arange(1, nodes + 1)))
    costs = Costs(tuple((price.once + np.maximum.accumulate(checks)).tolist()),
                  float(price.level(WIDTH)))
    rule = named(f"smart:{limits.depth}@{nodes}", costs=costs)
    yield _drafted_again(entrant, recorded, rule.name, rule, rows=batch)


def _drafted_again(entrant: Entrant, recorded: Recorded, label: str, shape: Tree | Growth, **options) -> Candidate:
    """The candidate of a shape or rule, by drafting again; a level of a grown tree has up to WIDTH nodes."""
    walk = simulated.rounds(recorded, entrant.drafter, shape, **options)
    counted, calling = _counted(recorded.trace, walk.rows, walk.starts), 1.0
    calls = float(walk.draft_calls[counted].mean()) if counted.any() else 0.0
    if isinstance(shape, Tree):
        passes = Counter(widths(shape).tolist())
        calling = min(1.0, calls if entrant.drafter.traits.one_pass else calls / passes.total())
    else:
        passes = {1: min(1.0, calls), WIDTH: max(0.0, calls - 1)}
    tally = acceptance.tally_walk(recorded.trace, walk)
    return _candidate(entrant, label, shape, [tally], walk.drafted[counted], passes if calls else {}, calling)


def _counted(trace: Trace, rows: np.ndarray, starts: np.ndarray) -> np.ndarray:
    """bool[R]: the rounds of these rows and starts, both int64[R], that are in no loop; all where there is no other."""
    before = starts < trace.loops[rows]
    return before if before.any() else np.ones(len(rows), dtype=bool)


def _candidate(entrant: Entrant, label: str, shape, tallies: Sequence[pd.DataFrame], drafted: np.ndarray,
               passes: Mapping[int, float] = {}, calling: float = 1.0) -> Candidate:
    """The candidate of some rounds; those within loops count where there is no other."""
    tally = pd.concat(tallies)
    before = tally[tally["stretch"] == "before"]
    summed = (before if len(before) else tally).set_index("prompt")[["accepted", "rounds"]]
    summed = summed.groupby(stats.unit).sum()
    accepted, rounds = (summed[name].to_numpy() for name in ("accepted", "rounds"))
    return Candidate(entrant, label, shape, list(summed.index), accepted, rounds, np.bincount(drafted) / len(drafted),
                     dict(passes), calling)
