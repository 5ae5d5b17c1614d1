"""Advice: which drafter, tree and budget are fastest for a target on this text and hardware, and the settings to take
away.

Everything is chosen on one half of a trace's prompts and judged on the other, with intervals from resampling prompts;
costs are those of a calibration (see `lib.cost`), taken as known.
"""

from dataclasses import dataclass
from typing import Callable, Sequence

import numpy as np
import pandas as pd

from lib import cost
from lib.cost import best_tree, engines
from lib.cost.best_tree import Choice, Limits
from lib.cost.fit import Costs
from lib.cost.rounds import RoundCost
from lib.lab import stats
from lib.replay import acceptance
from lib.replay.trace import Trace
from lib.studies.acceptance import recording
from lib.studies.advice import by_formula
from lib.trees import shapes
from lib.trees.growth.candidates import Growth
from lib.trees.tree import Tree

RECOMMENDED, PLAIN = "recommended", "plain decoding"
SAME_BUDGET, BEST_CHAIN, BEST_KARY = "chain of the same budget", "best chain", "best k-ary tree"
GROWS = "grows its tree anew each round, which a static replay cannot judge"
UNKNOWN = (float("nan"),) * 3  # a loss and its interval
# (drafter, rule) -> the judged prompts' tallies, None where the drafter grows no such tree: see `growth_study.judging`
Grow = Callable[[str, Growth], pd.DataFrame | None]
BRANCHINGS = (2, 3, 4)  # of the k-ary trees


@dataclass(frozen=True)
class Advice:
    """What to use, and why.

    table: a row for the recommendation and for each alternative, those that formulas would choose among them, in the
    columns of the table "advice". promised: by formula (its row's `what`) the speedup that it promises. settings: a row
    for each setting of an engine, in the columns of "advice_settings".
    """

    drafter: str
    tree: Tree
    table: pd.DataFrame
    promised: dict[str, float]
    settings: pd.DataFrame


@dataclass(frozen=True)
class Rival:
    """A tree by what it is in the comparison, and who drafts it."""

    what: str
    drafter: str
    tree: Tree


def advise(recorded: Trace, costs: Costs, *, batch: int = 1, prefix: int = 128, limits: Limits = Limits(),
           generator: np.random.Generator, drafters: Sequence[str] | None = None, grow: Grow | None = None) -> Advice:
    """The fastest of the trace's drafters (or of those named), its tree and settings, for a batch at a prefix length.

    recorded: a trace as `recording.record` makes it, which says what its choosing prompts are. grow: replays trees that
    grow, for engines that grow them; without it their loss is unknown. ValueError where a pair or
    batch was not calibrated.
    """
    choosing, judged = recording.halves(recorded)
    target = recorded.about["target"]
    price = {drafter: costs.at(target, drafter, batch=batch, prefix=prefix) for drafter in drafters or recorded.ranks}
    chosen = {drafter: best_tree.choose(choosing, own.round, limits, drafter) for drafter, own in price.items()}
    # Speedups, not speeds: each drafter is compared with the plain decoding of its own calibration.
    drafter = max(chosen, key=lambda name: chosen[name].speed * price[name].plain)
    own = price[drafter]
    asked = _nearest(chosen[drafter].tree, choosing, own, limits, drafter)
    promised = by_formula.promises(choosing, own, limits, drafter)
    rivals = [*_rivals(chosen, choosing, own, limits, drafter),
              *(Rival(one.what, drafter, one.tree) for one in promised),
              *(Rival(name, drafter, setting) for name, setting in asked.items() if isinstance(setting, Tree))]
    found = judge(judged, rivals, price, generator, batch=batch).set_index("what", drop=False)
    table = found[~found["what"].isin(asked)].reset_index(drop=True).assign(target=target, batch=batch, prefix=prefix)
    tree = chosen[drafter].tree
    ends = ["against", "against_high", "against_low"]
    loss = {name: tuple(1 - found.loc[name, ends]) for name in asked if name in found.index}
    if grow:
        loss |= {name: _grown_loss(setting, tree, judged, grow, own, drafter, generator)
                 for name, setting in asked.items() if isinstance(setting, engines.Dynamic)}
    settings = _settings(asked, tree, drafter, loss).assign(target=target, drafter=drafter, batch=batch, prefix=prefix)
    return Advice(drafter, tree, table, {one.what: one.speedup for one in promised}, settings)


def judge(judged: Trace, rivals: Sequence[Rival], price: dict[str, RoundCost], generator: np.random.Generator, *,
          batch: int = 1) -> pd.DataFrame:
    """The columns of `cost.speeds` for each rival, then `against`, its speed over the first one's on the same prompts,
    with _low and _high; `what`, `drafter` and `tree` say who it is.
    """
    parts, tallies = [], []
    for rival in rivals:
        named = [(rival.what, rival.tree.budget, rival.tree)]
        parts.append(cost.speeds(judged, rival.drafter, named, price[rival.drafter], generator, batch=batch).assign(
            drafter=rival.drafter, tree=str(rival.tree.choices())))
        tallies.append(acceptance.evaluate(judged, rival.drafter, named))
    found = pd.concat(parts, ignore_index=True).rename(columns={"family": "what"})
    first = rivals[0].what
    counted = pd.concat(tallies).query("stretch == 'before'").rename(columns={"family": "what"})
    counted = counted.assign(tokens=counted["accepted"] + counted["rounds"])
    ratio = stats.compare(counted, ["target"], "what", first, "tokens", "rounds", generator, relative=True)
    ratio = ratio.set_index("what").reindex(found["what"])
    own = np.array([price[rival.drafter].round(rival.tree) / price[rival.drafter].plain for rival in rivals])
    for end, name in zip(("value", "low", "high"), ("against", "against_low", "against_high")):
        found[name] = ratio[end].fillna({first: 1.0}).to_numpy() * own[0] / own
    return found.drop(columns="budget")


def _rivals(chosen: dict[str, Choice], choosing: Trace, own: RoundCost, limits: Limits, drafter: str) -> list[Rival]:
    """The recommendation first, then what it is measured against, then what the other drafters would do."""
    tree, nodes, depth = chosen[drafter].tree, limits.nodes, limits.depth
    chains = [shapes.chain(length) for length in range(min(nodes, depth) + 1)]
    kary = [shapes.at_budget(f"kary:{k}", n) for k in BRANCHINGS for n in range(k, nodes + 1)]
    kary = [one for one in kary if one.max_depth <= depth] or [Tree([-1])]
    return [Rival(RECOMMENDED, drafter, tree), Rival(SAME_BUDGET, drafter, shapes.chain(tree.budget)),
            Rival(BEST_CHAIN, drafter, engines.fastest(chains, choosing, own.round, drafter)),
            Rival(BEST_KARY, drafter, engines.fastest(kary, choosing, own.round, drafter)),
            Rival(PLAIN, drafter, Tree([-1])),
            *(Rival(f"best of {name}", name, choice.tree) for name, choice in chosen.items() if name != drafter)]


def _nearest(tree: Tree, choosing: Trace, own: RoundCost, limits: Limits, drafter: str) -> dict[str, engines.Setting]:
    """By engine the setting to give it; none at all where plain decoding is fastest."""
    if not tree.budget:
        return {}
    return {name: engines.nearest(engine, tree, choosing, own.round, limits, drafter)
            for name, engine in engines.ENGINES.items()}


def _grown_loss(setting: engines.Dynamic, tree: Tree, judged: Trace, grow: Grow, own: RoundCost, drafter: str,
                generator: np.random.Generator) -> tuple[float, float, float]:
    """What a tree that grows each round loses against the recommended one, with its interval; below 0 it gains."""
    grown = grow(drafter, setting.rule)
    if grown is None:
        return UNKNOWN
    counted = pd.concat([acceptance.evaluate(judged, drafter, [(RECOMMENDED, tree.budget, tree)]),
                         grown.assign(family="grown")])
    counted = counted.query("stretch == 'before'")
    counted = counted.assign(tokens=counted["accepted"] + counted["rounds"])
    ratio = stats.compare(counted, ["target"], "family", RECOMMENDED, "tokens", "rounds", generator, relative=True)
    ratio = ratio.set_index("family").loc["grown", ["value", "high", "low"]]
    return tuple(1 - ratio * own.round(tree) / own.grown(setting.widths, setting.nodes))


def _settings(asked: dict[str, engines.Setting], tree: Tree, drafter: str, loss: dict[str, tuple]) -> pd.DataFrame:
    """One row an engine: the line of text, whether it is the recommended tree, and what it loses against that."""
    rows = []
    for name, setting in asked.items():
        engine, (value, low, high) = engines.ENGINES[name], loss.get(name, UNKNOWN)
        note = f"{engine.note}; {GROWS}" if np.isnan(value) else engine.note
        rows.append(dict(engine=name, form=engine.form, setting=engine.line(setting, drafter),
                         exact=isinstance(setting, Tree) and setting == tree, loss=value, loss_low=low, loss_high=high,
                         note=note))
    return pd.DataFrame(rows, columns=["engine", "form", "setting", "exact", "loss", "loss_low", "loss_high", "note"])
