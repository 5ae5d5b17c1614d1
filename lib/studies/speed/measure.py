"""Speed side by side: every alternative, the recommendation among them, on the same groups of prompts in interleaved
turns, one row of the table "speed" per run; and the ratios that follow from its rows.

A ratio of speeds is the geometric mean over prompts of each prompt's own ratio, so that each prompt counts once
whatever the length of its text; its interval comes from resampling prompts.
"""

import time
from pathlib import Path
from typing import Callable, Sequence

import numpy as np
import pandas as pd
import torch

from lib.cost import recommendation
from lib.cost.calibration import dtype_of
from lib.cost.recommendation import Recommendation
from lib.cost.recommending import RULER
from lib.cost.ways import GENERATE, Continued, groups, one_per_round
from lib.drafters.controls import RandomDrafter
from lib.drafters.drafter import Drafter
from lib.drafters.registry import make
from lib.lab import stats
from lib.lab.tables import Table
from lib.lab.timing import synchronise
from lib.studies.speed.alternatives import PLAIN, THEIRS, Alternative


# ------------------------------------------------------------------------------------------------ what is given to it


def recommended(run_dir: str, target: str, dtype: str, batches: Sequence[int],
                make_anew: Callable[[], Recommendation]) -> Recommendation:
    """The recommendation in the run's folder, or where it has none for this target, dtype and these batches, the result
    of `make_anew`.
    """
    path = Path(run_dir) / recommendation.FILE
    if run_dir and path.exists():
        found = recommendation.load(path)
        if (found.target, found.dtype) == (target, dtype) and {own.batch for own in found.by_batch} >= set(batches):
            return found
    return make_anew()


def timed_drafters(pair, specs: Sequence[str], seed: int) -> dict[str, Drafter]:
    """The drafters whose rounds are calibrated, by name: random tokens, which tell the cost of a check, and these."""
    ruler = RandomDrafter(pair.target.config.get_text_config().vocab_size, torch.Generator().manual_seed(seed))
    return {RULER: ruler} | {spec: make(spec, pair) for spec in specs}


# --------------------------------------------------------------------------------------------------------------- timing


def measure(table: Table, pair, alternatives: Sequence[Alternative], prompts, *, batch: int, repeats: int,
            generator: torch.Generator) -> None:
    """Times all alternatives on all groups of prompts, one row each; rows that the table has are not made again.

    Alternatives are interleaved on each group, in shuffled order, after one untimed run each. Other programs' ways, which
    are slow, have one repeat. An interrupt loses the current run alone.
    """
    fitting, dtype = [way for way in alternatives if way.batched or batch == 1], dtype_of(pair)
    own: dict[str, list[list[int]]] = {}
    todo = [(repeat, *group, fitting[at]) for repeat in range(repeats) for group in groups(prompts, batch)
            for at in torch.randperm(len(fitting), generator=generator).tolist()
            if not (repeat and fitting[at].name in THEIRS)
            and (pair.name, dtype, batch, fitting[at].name, group[0], repeat) not in table.keys()]
    for way in {way.name: way for *_, way in todo}.values():
        way.run(todo[0][3])
    for repeat, name, kind, group, way in todo:
        if name not in own:
            own[name] = next(other for other in fitting if other.name == GENERATE).run(group).tokens
        synchronise(pair.target.device)
        start = time.perf_counter()
        done = way.run(group)
        synchronise(pair.target.device)
        end = time.perf_counter()
        table.append(pair=pair.name, dtype=dtype, batch=batch, alternative=way.name, drafter=way.drafter,
                     shape=way.shape, prompt=name, kind=kind, repeat=repeat, **counted(done, start, end),
                     same=done.tokens == own[name])


def counted(done: Continued, start: float, end: float) -> dict[str, object]:
    """Tokens and seconds of one run between two times, and the counts and seconds of its rounds; NaN where a run has no
    records of them, but for the seconds after a prefill whose end is known.
    """
    found = {"tokens": sum(map(len, done.tokens)), "seconds": end - start}
    if not done.rounds:
        unknown = dict.fromkeys(("rounds", "accepted", "model_seconds"), float("nan"))
        return found | unknown | {"round_seconds": end - done.prefilled}
    rounds = one_per_round(done.rounds)
    return found | {"rounds": float(len(done.rounds)), "accepted": float(sum(one.accepted for one in done.rounds)),
                    "round_seconds": sum(one.seconds for one in rounds),
                    "model_seconds": sum(one.model_seconds for one in rounds)}


# --------------------------------------------------------------------------------------------------------------- ratios


def gains(rows: pd.DataFrame, base: str, rng: np.random.Generator, by: Sequence[str] = ()) -> pd.DataFrame:
    """Each alternative's speed over `base`'s: pair, batch, alternative, value, low, high, n_prompts.

    by: further columns to group by, such as "kind". A prompt's speed is the median of its repeats, of which one may have
    been disturbed.
    """
    setting = ["pair", "batch", *by]
    speeds = rows.assign(log=np.log(rows["tokens"] / rows["seconds"]))
    speeds = speeds.groupby([*setting, "alternative", "prompt"], as_index=False, sort=False)["log"].median()
    own = speeds[speeds["alternative"] == base].set_index([*setting, "prompt"])["log"].rename("base")
    if own.empty:
        raise ValueError(f"no row is of {base!r}; there are {', '.join(rows['alternative'].unique())}")
    both = speeds.join(own, on=[*setting, "prompt"], how="inner")
    both["log"] -= both["base"]
    both["once"] = 1
    found = stats.summarise(both, [*setting, "alternative"], "log", "once", rng, rounds="once")
    for name in ("value", "low", "high"):
        found[name] = np.exp(found[name])
    return found.drop(columns="n_rounds")


def decoding_alone(rows: pd.DataFrame) -> pd.DataFrame:
    """The rows whose time without prefill is known, with the tokens and seconds of decoding alone, for `gains`."""
    known = rows[rows["round_seconds"].notna()]
    return known.assign(tokens=known["tokens"] - known["batch"], seconds=known["round_seconds"])


def factors(rows: pd.DataFrame, rng: np.random.Generator) -> pd.DataFrame:
    """The speed of each alternative over transformers' `generate` (value, low, high), and its two factors: `loop`, the
    plain loop over `generate`, and `over_plain`, the alternative over the plain loop; `alone`, the latter without
    prefill, NaN where that is not known.
    """
    total = gains(rows, GENERATE, rng)
    for name, compared in (("over_plain", rows), ("alone", decoding_alone(rows))):
        speculation = gains(compared, PLAIN, rng).set_index(["pair", "batch", "alternative"])["value"]
        total = total.join(speculation.rename(name), on=["pair", "batch", "alternative"])
    loop = total[total["alternative"] == PLAIN].set_index(["pair", "batch"])["value"].rename("loop")
    return total.join(loop, on=["pair", "batch"])


def outside(rows: pd.DataFrame) -> pd.DataFrame:
    """By pair, batch and alternative: the share of the rounds' time in neither model."""
    ours = rows[rows["rounds"].notna()]
    setting, columns = ["pair", "batch", "alternative"], ["round_seconds", "model_seconds"]
    sums = ours.groupby(setting, as_index=False, sort=False)[columns].sum()
    return sums.assign(outside=1 - sums["model_seconds"] / sums["round_seconds"])
