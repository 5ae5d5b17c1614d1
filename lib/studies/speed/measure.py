"""Speed side by side: every alternative on the same groups of prompts, interleaved, one row a run; and what rows say.

The rows are those of the table "speed". A ratio of speeds is a geometric mean over prompts of each prompt's own ratio,
so that each counts once however long its text is; its interval comes from resampling prompts.
"""

import time
from typing import Iterator, Sequence

import numpy as np
import pandas as pd
import torch
from torch import Tensor

from lib.decoding.records import Round
from lib.lab import stats
from lib.lab.tables import Table
from lib.lab.timing import synchronise
from lib.studies.speed.alternatives import GENERATE, PLAIN, Alternative, Continued

MIXED = "mixed"  # instead of a kind of text
GOAL = 0.1  # share of a round's time that may be in neither model, at batch 1
FLOOR = 0.95  # speed over the plain loop that a policy should keep on every kind of text
HINDSIGHT = "best in hindsight"  # each prompt's fastest


def groups(asked, batch: int) -> Iterator[tuple[str, str, list[Tensor]]]:
    """(name, kind, prompts) of the batches of `together`, each named by its first one. asked: `recording.Prompts`."""
    for kind, rows in together(asked.kinds, batch):
        yield asked.names[rows[0]], kind, [asked.ids[i] for i in rows]


def together(kinds: Sequence[str], batch: int) -> Iterator[tuple[str, list[int]]]:
    """(kind, rows) of batches of one kind of text each, or of MIXED kinds where one has too few rows; kinds: by row.

    Where rows end they begin again.
    """
    own_rows = {kind: [row for row, other in enumerate(kinds) if other == kind] for kind in dict.fromkeys(kinds)}
    if min(map(len, own_rows.values()), default=0) < batch:
        own_rows = {MIXED: list(range(len(kinds)))}
    for kind, own in own_rows.items():
        for first in range(0, len(own), batch):
            yield kind, [own[(first + i) % len(own)] for i in range(batch)]


def measure(
    table: Table,
    pair,
    alternatives: Sequence[Alternative],
    asked,
    *,
    batch: int,
    repeats: int,
    generator: torch.Generator,
) -> None:
    """Times all alternatives on all groups of `asked` prompts, a row each; rows that the table has are not made again.

    Alternatives take turns on each group, in shuffled order, after one untimed run each. An interrupt loses the run
    that it meets, no other.
    """
    fitting = [way for way in alternatives if way.batched or batch == 1]
    own: dict[str, list[list[int]]] = {}
    todo = [
        (repeat, *group, way)
        for repeat in range(repeats)
        for group in groups(asked, batch)
        for way in _shuffled(fitting, generator)
        if (pair.name, batch, way.name, group[0], repeat) not in table.keys()
    ]
    for way in {way.name: way for *_, way in todo}.values():
        way.run(todo[0][3])
    for repeat, name, kind, prompts, way in todo:
        if name not in own:
            own[name] = next(other for other in fitting if other.name == GENERATE).run(prompts).tokens
        synchronise(pair.target.device)
        start = time.perf_counter()
        done = way.run(prompts)
        synchronise(pair.target.device)
        seconds = time.perf_counter() - start
        setting = dict(pair=pair.name, batch=batch, alternative=way.name, drafter=way.drafter, shape=way.shape)
        table.append(
            **setting, prompt=name, kind=kind, repeat=repeat, **counted(done, seconds), same=done.tokens == own[name]
        )


def _shuffled(ways: Sequence[Alternative], generator: torch.Generator) -> list[Alternative]:
    return [ways[at] for at in torch.randperm(len(ways), generator=generator).tolist()]


def counted(done: Continued, seconds: float) -> dict[str, object]:
    """What one run is in numbers: tokens, seconds, and those of its rounds, which transformers' runs do not tell."""
    rounds = one_a_round(done.rounds)
    whole = [found for found in done.rounds if not found.cut]
    known = bool(done.rounds)
    return {
        "tokens": sum(map(len, done.tokens)),
        "seconds": seconds,
        "rounds": float(len(whole)) if known else float("nan"),
        "accepted": float(sum(found.accepted for found in whole)) if known else float("nan"),
        "round_seconds": sum(found.seconds for found in rounds) if known else float("nan"),
        "model_seconds": sum(found.model_seconds for found in rounds) if known else float("nan"),
    }


def one_a_round(rounds: Sequence[Round]) -> list[Round]:
    """The first row's record of every round of a batch: records stand round by round, rows in their order."""
    begins = [True, *(after.row <= before.row for before, after in zip(rounds, rounds[1:]))]
    return [found for found, first in zip(rounds, begins) if first]


def whole(rounds: Sequence[Round], batch: int) -> list[Sequence[Round]]:
    """The records, one a row, of the rounds in which every row of the batch ran and none was cut short."""
    together = (rounds[first : first + batch] for first in range(0, len(rounds), batch))
    return [records for records in together
            if [each.row for each in records] == list(range(batch)) and not any(each.cut for each in records)]


# ---------------------------------------------------------------------------------------------------- what the rows say


def gains(rows: pd.DataFrame, base: str, generator: np.random.Generator, by: Sequence[str] = ()) -> pd.DataFrame:
    """Each alternative's speed over `base`'s: pair, batch, alternative, value, low, high, n_prompts.

    by: further columns to keep apart, such as "kind". Repeats of a prompt are added up before ratios are taken.
    """
    setting = ["pair", "batch", *by]
    summed = rows.groupby([*setting, "alternative", "prompt"], as_index=False, sort=False)[["tokens", "seconds"]].sum()
    summed["log"] = np.log(summed["tokens"] / summed["seconds"])
    own = summed[summed["alternative"] == base].set_index([*setting, "prompt"])["log"].rename("base")
    if own.empty:
        raise ValueError(f"no row is of {base!r}; there are {', '.join(rows['alternative'].unique())}")
    both = summed.join(own, on=[*setting, "prompt"], how="inner")
    both["log"] -= both["base"]
    both["once"] = 1
    found = stats.summarise(both, [*setting, "alternative"], "log", "once", generator, rounds="once")
    for name in ("value", "low", "high"):
        found[name] = np.exp(found[name])
    return found.drop(columns="n_rounds")


def factors(rows: pd.DataFrame, generator: np.random.Generator) -> pd.DataFrame:
    """The two factors of each of the loop's alternatives: what the loop gains over transformers' `generate`, and what
    speculation gains over the plain loop; `total` is their product. Transformers' own have a total alone.
    """
    total = gains(rows, GENERATE, generator)
    speculation = gains(rows, PLAIN, generator).set_index(["pair", "batch", "alternative"])["value"]
    total = total.join(speculation.rename("over_plain"), on=["pair", "batch", "alternative"])
    loop = total[total["alternative"] == PLAIN].set_index(["pair", "batch"])["value"].rename("loop")
    return total.join(loop, on=["pair", "batch"])


def with_hindsight(rows: pd.DataFrame, fixed: Sequence[str]) -> pd.DataFrame:
    """The rows, and those of the fastest of some alternatives for each prompt again, as the alternative HINDSIGHT."""
    own = rows[rows["alternative"].isin(fixed)]
    group = ["pair", "batch", "prompt"]
    summed = own.groupby([*group, "alternative"], as_index=False)[["tokens", "seconds"]].sum()
    summed["rate"] = summed["tokens"] / summed["seconds"]
    best = summed.loc[summed.groupby(group)["rate"].idxmax(), [*group, "alternative"]]
    known_later = own.merge(best, on=[*group, "alternative"]).assign(alternative=HINDSIGHT)
    return pd.concat([rows, known_later], ignore_index=True)


def outside(rows: pd.DataFrame) -> pd.DataFrame:
    """The share of the rounds' time that is in neither model, and tokens a round: pair, batch, alternative, ..."""
    known = rows[rows["rounds"].notna()]
    columns = ["tokens", "rounds", "accepted", "round_seconds", "model_seconds"]
    sums = known.groupby(["pair", "batch", "alternative"], as_index=False, sort=False)[columns].sum()
    sums["outside"] = 1 - sums["model_seconds"] / sums["round_seconds"]
    sums["tokens_a_round"] = 1 + sums["accepted"] / sums["rounds"]
    return sums
