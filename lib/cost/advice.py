"""The recommendation: the drafter, tree and budget that are fastest for a target on this text and hardware, what it is
measured against, and the settings for serving engines.

Everything is chosen on one half of a trace's prompts and judged on the other, with intervals from resampling prompts;
costs are those of a calibration (see `calibration`), taken as known.
"""

from dataclasses import dataclass
from typing import Callable, Sequence

import numpy as np
import pandas as pd

from lib.cost import best_tree, formulas, prediction
from lib.cost.best_tree import Choice, Limits
from lib.cost.engines.forms import Dynamic
from lib.cost.engines.registry import ENGINES, Setting, fastest, nearest
from lib.cost.fit import Costs
from lib.cost.round_cost import RoundCost
from lib.lab import stats
from lib.replay import acceptance
from lib.replay.trace import Trace
from lib.trees import shapes
from lib.trees.growth.candidates import Growth
from lib.trees.tree import Tree

RECOMMENDED, PLAIN = "recommended", "plain decoding"
SAME_BUDGET, BEST_CHAIN, BEST_KARY = "chain of the same budget", "best chain", "best k-ary tree"
GROWS = "grows its tree anew each round, which a static replay cannot judge"
UNKNOWN = (float("nan"),) * 3  # a loss and its interval
# (drafter, rule) -> tallies of the judged prompts, None where the drafter grows no such tree
Grow = Callable[[str, Growth], pd.DataFrame | None]
BRANCHINGS = (2, 3, 4)  # of the k-ary trees


@dataclass(frozen=True)
class Advice:
    """What to use, and why.

    table: a row for the recommendation and for each alternative, with those that formulas would choose, in the columns
    of the table "advice". promised: by formula (its row's `what`) the speedup that it promises. settings: a row for
    each setting of an engine, in the columns of "advice_settings".
    """

    drafter: str
    tree: Tree
    table: pd.DataFrame
    promised: dict[str, float]
    settings: pd.DataFrame


@dataclass(frozen=True)
class Rival:
    """A tree and its drafter, named by their part in the comparison."""

    what: str
    drafter: str
    tree: Tree


def advise(choosing: Trace, judged: Trace, costs: Costs, *, batch: int = 1, prefix: int = 128,
           limits: Limits = Limits(), generator: np.random.Generator, drafters: Sequence[str] | None = None,
           grow: Grow | None = None) -> Advice:
    """The fastest of the trace's drafters (or of those named), its tree and settings, for a batch at a prefix length.

    choosing, judged: the two parts of a trace. grow: replays trees that grow in every round, for engines that grow
    them; without it their loss is unknown. ValueError where a pair or batch was not calibrated.
    """
    target = choosing.about["target"]
    price = {drafter: costs.at(target, drafter, batch=batch, prefix=prefix) for drafter in drafters or choosing.ranks}
    chosen = {drafter: best_tree.choose(choosing, own.round, limits, drafter) for drafter, own in price.items()}
    # Speedups, not speeds: each drafter is compared with the plain decoding of its own calibration.
    drafter = max(chosen, key=lambda name: chosen[name].speed * price[name].plain)
    own, tree = price[drafter], chosen[drafter].tree
    settings = {name: nearest(engine, tree, choosing, own.round, limits, drafter)
                for name, engine in ENGINES.items() if tree.budget}  # none where plain decoding is fastest
    promised = formulas.promises(choosing, own, limits, drafter)
    rivals = [*_rivals(chosen, choosing, own, limits, drafter),
              *(Rival(promise.formula, drafter, promise.tree) for promise in promised),
              *(Rival(engine, drafter, setting) for engine, setting in settings.items() if isinstance(setting, Tree))]
    rows = judge(judged, rivals, price, generator, batch=batch).set_index("what", drop=False)
    table = rows[~rows["what"].isin(settings)].reset_index(drop=True).assign(target=target, batch=batch, prefix=prefix)
    ends = ["against", "against_high", "against_low"]
    loss = {engine: tuple(1 - rows.loc[engine, ends]) for engine in settings if engine in rows.index}
    if grow:
        loss |= {engine: _grown_loss(setting, tree, judged, grow, own, drafter, generator)
                 for engine, setting in settings.items() if isinstance(setting, Dynamic)}
    lines = _setting_rows(settings, tree, drafter, loss).assign(target=target, drafter=drafter, batch=batch,
                                                                prefix=prefix)
    return Advice(drafter, tree, table, {promise.formula: promise.speedup for promise in promised}, lines)


def judge(judged: Trace, rivals: Sequence[Rival], price: dict[str, RoundCost], generator: np.random.Generator, *,
          batch: int = 1) -> pd.DataFrame:
    """The columns of `prediction.speeds` for each rival, then `against`, its speed over the first one's on the same
    prompts, with _low and _high; `what`, `drafter` and `tree` name it.
    """
    parts, tallies = [], []
    for rival in rivals:
        named = [(rival.what, rival.tree.budget, rival.tree)]
        parts.append(prediction.speeds(judged, rival.drafter, named, price[rival.drafter], generator,
                                       batch=batch).assign(drafter=rival.drafter, tree=str(rival.tree.choices())))
        tallies.append(acceptance.evaluate(judged, rival.drafter, named))
    found = pd.concat(parts, ignore_index=True).rename(columns={"family": "what"})
    first = rivals[0].what
    ratio = _tokens_against(pd.concat(tallies), first, generator).reindex(found["what"])
    own = np.array([price[rival.drafter].round(rival.tree) / price[rival.drafter].plain for rival in rivals])
    for end, name in zip(("value", "low", "high"), ("against", "against_low", "against_high")):
        found[name] = ratio[end].fillna({first: 1.0}).to_numpy() * own[0] / own
    return found.drop(columns="budget")


def _tokens_against(tallies: pd.DataFrame, base: str, generator: np.random.Generator) -> pd.DataFrame:
    """By family: tokens per round over those of the family `base` on the same prompts (value, low, high), before a
    loop.
    """
    counted = tallies.query("stretch == 'before'")
    counted = counted.assign(tokens=counted["accepted"] + counted["rounds"])
    return stats.compare(counted, ["target"], "family", base, "tokens", "rounds", generator,
                         relative=True).set_index("family")


def _rivals(chosen: dict[str, Choice], choosing: Trace, own: RoundCost, limits: Limits, drafter: str) -> list[Rival]:
    """The recommendation, then what it is measured against, then the other drafters at their best."""
    tree, nodes, depth = chosen[drafter].tree, limits.nodes, limits.depth
    chains = [shapes.chain(length) for length in range(min(nodes, depth) + 1)]
    kary = [shapes.at_budget(f"kary:{k}", n) for k in BRANCHINGS for n in range(k, nodes + 1)]
    kary = [one for one in kary if one.max_depth <= depth] or [Tree([-1])]
    return [Rival(RECOMMENDED, drafter, tree), Rival(SAME_BUDGET, drafter, shapes.chain(tree.budget)),
            Rival(BEST_CHAIN, drafter, fastest(chains, choosing, own.round, drafter)),
            Rival(BEST_KARY, drafter, fastest(kary, choosing, own.round, drafter)),
            Rival(PLAIN, drafter, Tree([-1])),
            *(Rival(f"best of {name}", name, choice.tree) for name, choice in chosen.items() if name != drafter)]


def _grown_loss(setting: Dynamic, tree: Tree, judged: Trace, grow: Grow, own: RoundCost, drafter: str,
                generator: np.random.Generator) -> tuple[float, float, float]:
    """The share of speed that a tree grown in every round loses against the recommended one, with its interval; a
    negative loss is a gain.
    """
    grown = grow(drafter, setting.rule)
    if grown is None:
        return UNKNOWN
    tallies = pd.concat([acceptance.evaluate(judged, drafter, [(RECOMMENDED, tree.budget, tree)]),
                         grown.assign(family="grown")])
    ratio = _tokens_against(tallies, RECOMMENDED, generator).loc["grown", ["value", "high", "low"]]
    return tuple(1 - ratio * own.round(tree) / own.grown(setting.widths, setting.nodes))


def _setting_rows(settings: dict[str, Setting], tree: Tree, drafter: str, loss: dict[str, tuple]) -> pd.DataFrame:
    """One row per engine: the line of text, whether it is the recommended tree, and the speed that it loses."""
    rows = []
    for name, setting in settings.items():
        engine, (value, low, high) = ENGINES[name], loss.get(name, UNKNOWN)
        note = f"{engine.note}; {GROWS}" if np.isnan(value) else engine.note
        rows.append(dict(engine=name, form=engine.form, setting=engine.line(setting, drafter),
                         exact=isinstance(setting, Tree) and setting == tree, loss=value, loss_low=low, loss_high=high,
                         note=note))
    return pd.DataFrame(rows, columns=["engine", "form", "setting", "exact", "loss", "loss_low", "loss_high", "note"])
