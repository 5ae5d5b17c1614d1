"""The best tree of each drafter over its best chain, by the tables of a run, and why: with the costs of the run, and of
other machines in data/costs.

The speed of a way is its tokens per round over the time of a round in plain steps. A tree pays where its width adds a
larger part to the tokens than its rows add to the time. The study takes the units of choosing prompts: every second
unit chooses the best chain and the best tree, and the others judge them.
"""

import numpy as np
import pandas as pd

from lib.engines.methods import PLAIN
from lib.lab import stats
from lib.study import costs_files
from lib.study.bench import CHOOSING
from lib.study.costs import Costs

ANY = "any drafter"
FORMS = CHAIN, TREE = "chain", "tree"
FILLED = 0.85  # of a tree's nodes at least, in the mean over rounds: the tables lack the sizes of smaller drafts


def tokens_per_round(rounds: pd.DataFrame, texts: pd.DataFrame) -> pd.DataFrame:
    """The rows of the table "rounds" of prompts that choose, with the logarithm `log` of tokens per round.

    rounds: as of `Chapter.rounds`; texts: the table.
    """
    lengths = texts[["target", "backend", "temperature", "prompt", "tokens"]]
    rows = rounds[rounds["part"] == CHOOSING].merge(lengths).query("tokens > 1")
    return rows.assign(log=np.log((rows["tokens"] - 1) / rows["rounds"]))


def round_times(predictions: pd.DataFrame, tokens: pd.DataFrame) -> pd.DataFrame:
    """The ways of the table "predictions" with their `form`, draft tokens per round `drafted`, and the `time` of a
    round in plain steps, which is tokens per round over the predicted speed.

    tokens: as of `tokens_per_round`; `writer` is whose of them are the way's, the first one's where it has none. Of
    ways with the same rounds the first stays, since a tree that was grown from text may be a chain.
    """
    rows, writers = predictions[predictions["part"] == CHOOSING].dropna(subset="value"), [*tokens["backend"], ""]
    by_way = tokens.groupby(["backend", "drafter", "shape"])
    means = by_way["log"].mean().to_frame().assign(drafted=by_way["drafted"].sum() / by_way["rounds"].sum())
    rows = rows.assign(form=np.where(rows["shape"].str.startswith("chain:"), CHAIN, TREE),
                       writer=rows["backend"].where(rows["backend"].isin(writers), writers[0]))
    rows = rows.join(means, on=["writer", "drafter", "shape"], how="inner")
    rows = rows.drop_duplicates(["backend", "batch", "drafter", "nodes", "log"])
    return rows.assign(time=np.exp(rows["log"]) / rows["value"])


def times_elsewhere(times: pd.DataFrame, costs: pd.DataFrame) -> pd.DataFrame:
    """`round_times` of the first backend's ways with the curves of data/costs, for drafts that these curves cover. A
    round takes that machine's check, and drafting the same share of a plain step as here. costs: the table.
    """
    found, here = [times.iloc[:0]], times[times["backend"].isin(times["backend"].head(1))]
    here = here[(here["batch"] == here["batch"].min()) & (here["drafted"] >= FILLED * here["nodes"])]
    costs = costs[costs["backend"].isin(here["backend"])]
    if PLAIN not in set(costs["method"]):
        return found[0]
    beside = (here["time"] - _checks(Costs.of(costs), here["batch"].iloc[0], here)).clip(lower=0)
    for file in costs_files.names():
        for name, rows in costs_files.read(file).groupby("backend", sort=False):
            curves = Costs.of(costs_files.with_plain(rows))
            for batch in curves.checks:
                fits = here["nodes"] <= rows.loc[rows["batch"] == batch, "nodes"].max()
                checks = _checks(curves, batch, here[fits])
                found.append(here[fits].assign(backend=f"{name} ({file})", batch=batch, time=checks + beside[fits]))
    return pd.concat(found)


def _checks(costs: Costs, batch: int, ways: pd.DataFrame) -> np.ndarray:
    """float64[W]: the mean time of a round's check in plain steps, if each draft has all of its nodes or none."""
    share = (ways["drafted"] / ways["nodes"]).to_numpy()
    whole, none = (costs.check(batch, nodes) for nodes in (ways["nodes"].to_numpy(), 0))
    return (share * whole + (1 - share) * none) / float(costs.plain(batch))


def best(times: pd.DataFrame, tokens: pd.DataFrame, generator: np.random.Generator) -> pd.DataFrame:
    """By backend and batch size, for ANY drafter and for each, the speed of the best tree over the best chain (value,
    low, high, n), paired by unit; for the tree and the chain also the way, tokens per round and time of a round.
    """
    columns = [form + part for form in FORMS for part in ("", " tokens", " time")]
    rows, by_writer = [], {writer: part.pivot_table(index="unit", columns=["drafter", "shape"], values="log").dropna()
                           for writer, part in tokens.groupby("backend")}
    for (backend, batch, writer), ways in times.groupby(["backend", "batch", "writer"], sort=False):
        logs = by_writer[writer][list(zip(ways["drafter"], ways["shape"]))].to_numpy()
        spent = np.log(ways["time"].array)
        speeds, judging = logs[::2].mean(0) - spent, logs[1::2] if len(logs) > 1 else logs
        for drafter in [ANY, *ways["drafter"].unique()]:
            competes = ways["drafter"].isin(ways["drafter"] if drafter == ANY else [drafter])
            able = [np.flatnonzero(competes & (ways["form"] == form)) for form in FORMS]
            if not all(map(len, able)):
                continue
            chain, tree = (indices[speeds[indices].argmax()] for indices in able)
            ratios = judging[:, tree] - judging[:, chain] - spent[tree] + spent[chain]
            row = [backend, batch, drafter, *stats.of_logs([ratios], generator)[: len(stats.FIELDS)]]
            for index in (chain, tree):
                row += [ways["way"].iloc[index], np.exp(judging[:, index].mean()), np.exp(spent[index])]
            rows.append(row)
    return pd.DataFrame(rows, columns=["backend", "batch", "drafter", *stats.FIELDS, *columns])
