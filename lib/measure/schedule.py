"""Which drafter and tree, by batch size and length of the text, and does the length explain what is accepted? The
tables "schedule" and "explained" of notebook 6.

Prompts of each length are made of real text, and the target's greedy answers are recorded.
Drafters that read the text draft again, and the pair's draft model is replayed; its drafting and the check are timed
after texts of that length. Heads are left out: timing each in each cell would take longer than the recommendation.
"""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import pandas as pd
import torch

from lib.cost import candidates
from lib.cost.calibration import calibrate
from lib.cost.round_cost import FREE, RULER, CostTable
from lib.decoding.checks import checkable
from lib.drafters.controls import ExcerptDrafter
from lib.drafters.registry import BY_RANKS
from lib.drafters.heads.files import NGRAMS
from lib.drafters.registry import DRAFT_MODEL, kinds_for, make, needs
from lib.lab import stats
from lib.models import dialogue
from lib.models import prompts as prompt_files
from lib.models.prompts import PromptSet
from lib.replay import acceptance, simulated
from lib.replay.exact import Walk
from lib.replay.trace import Trace
from lib.trees import named

SHAPES = ("chain:1", "chain:2", "chain:4", "chain:7", "independent:2@8", "kary:2@14")
READERS = ("lookup", "sam")
PER_KIND = 2  # prompts of each kind of text and length
MOST_TOKENS = 8192  # of all texts of a batch: more are not timed
CHAIN, TREE = "chain", "tree"


PARTS = 4  # of an answer, by position
EXPLAINED = "chain:4"  # the shape whose rounds are explained


def schedule(pair, *, lengths: Sequence[int], batches: Sequence[int], new_tokens: int, seconds: float, seed: int,
             folder: str = "") -> tuple[pd.DataFrame, pd.DataFrame]:
    """The rows of both tables; of "schedule" for each batch, length and kind of draft (CHAIN or TREE) the fastest
    drafter and shape, its predicted speed over plain decoding with an interval from resampled prompts, and a plain
    round's milliseconds.

    folder: of the user's texts; empty for the shipped ones. seconds: for the costs of a batch, length and drafter.
    Lengths that leave no room in the target's window, or need more than MOST_TOKENS in a batch, are left out.
    """
    texts = Path(folder) if folder else prompt_files.FAMILY
    rng, order, frames, rounds = np.random.default_rng(seed), torch.Generator().manual_seed(seed), [], []
    kinds = [*READERS, *(name for name in kinds_for(pair) if name == NGRAMS)]
    readers, last = {name: make(name, pair) for name in kinds}, kinds[-1]
    specs = [name for name in kinds_for(pair) if DRAFT_MODEL in needs(name)]
    able = candidates.entrants([pair], specs) if specs else []
    modelled = [one for one in able if one.drafter.traits.replay == BY_RANKS]
    names = checkable(pair.target, SHAPES)
    deepest = max(named(name).max_depth for name in names)
    room = pair.window - new_tokens - deepest - 2 if pair.window else np.inf
    for length in (length for length in lengths if length < 0.9 * room):
        prompts = prompts_of_length(pair.tokenizer, length, texts)
        modelled = candidates.within(modelled, max(map(len, prompts.ids)) + new_tokens + deepest)
        recorded = candidates.record(pair, modelled, prompts, new_tokens, deepest)
        ruler = ExcerptDrafter(prompts.ids, pair.vocabulary, order)
        walks = {(reader, name): simulated.rounds(recorded, drafter, named(name))
                 for reader, drafter in readers.items() for name in names}
        walks |= {(one.name, name): acceptance.rounds_of(recorded.trace, named(name), one.name)
                  for one in modelled for name in names}
        tallies = {way: acceptance.tally_walk(recorded.trace, walk) for way, walk in walks.items()}
        rounds.append(_rounds(recorded.trace, walks[last, EXPLAINED]).assign(length=length))
        for batch in (batch for batch in batches if batch * length <= MOST_TOKENS):
            prices = {name: CostTable(calibrate(
                pair, prompts.ids, batches=[batch], prefix=length, shapes=names, seconds=seconds, generator=order,
                drafter=drafter, repeats=3).assign(drafter=name)).at(pair.target_name, name, batch=batch)
                for name, drafter in ((RULER, ruler), *((one.name, one.drafter) for one in modelled))}
            price = replace(prices[RULER], once=0.0, level=FREE)
            prices = {reader: prices[reader].checking_as(price) if reader in prices else price for reader, _ in tallies}
            tried = pd.DataFrame([_row(*way, tally, prices[way[0]], rng) for way, tally in tallies.items()])
            best = tried.loc[tried.groupby("kind")["speedup"].idxmax()]
            frames.append(best.assign(target=pair.target_name, batch=batch, length=length,
                                      plain_ms=1000 * price.plain))
            print(f"batch {batch}, {length} tokens: a plain round takes {1000 * price.plain:.1f} ms")
    if not frames:
        return pd.DataFrame(), pd.DataFrame()
    factors = explained(pd.concat(rounds, ignore_index=True), rng)
    return (pd.concat(frames, ignore_index=True),
            factors.assign(target=pair.target_name, drafter=last, shape=EXPLAINED))


def _rounds(trace: Trace, walk: Walk) -> pd.DataFrame:
    """Each round before a loop: prompt, kind, accepted tokens, and position, the part of the answer."""
    rows, starts = np.asarray(walk.rows), np.asarray(walk.starts)
    part = np.minimum(PARTS - 1, PARTS * starts // np.maximum(1, trace.lengths[rows]))
    frame = pd.DataFrame(dict(prompt=np.array(trace.prompts)[rows], kind=np.array(trace.kinds)[rows],
                              accepted=walk.accepted, position=part))
    return frame[starts < trace.loops[rows]]


def explained(rounds: pd.DataFrame, rng: np.random.Generator, draws: int = 200) -> pd.DataFrame:
    """Of the variance of the accepted tokens of rounds the share that the means by kind, length and position explain,
    each alone, adjusted for the number of means; intervals from resampled prompts. Negative is no more than chance.
    """
    by_prompt = [part for _, part in rounds.groupby("prompt", sort=False)]
    drawn = [rounds] + [pd.concat([by_prompt[at] for at in rng.integers(len(by_prompt), size=len(by_prompt))])
                        for _ in range(draws)]
    rows = []
    for factor in ("kind", "length", "position"):
        shares = np.array([_share(sample, factor) for sample in drawn])
        low, high = np.nanquantile(shares[1:], [0.025, 0.975])
        rows.append(dict(factor=factor, share=shares[0], low=low, high=high, n_prompts=len(by_prompt),
                         n_rounds=len(rounds)))
    return pd.DataFrame(rows)


def _share(rounds: pd.DataFrame, factor: str) -> float:
    """1 - (n - 1) / (n - k) times the variance within the k groups over the whole variance."""
    values, groups = rounds["accepted"], rounds.groupby(factor)["accepted"]
    inside, whole = ((values - groups.transform("mean")) ** 2).sum(), ((values - values.mean()) ** 2).sum()
    spare = len(rounds) - groups.ngroups
    return 1 - (len(rounds) - 1) / spare * inside / whole if spare > 0 and whole > 0 else np.nan


def prompts_of_length(tokenizer, length: int, texts: Path) -> PromptSet:
    """PER_KIND prompts of each kind with `length` tokens of text, and those of the chat template where there is one.

    texts: of a file of prompts, or a folder, which are joined by kind. A kind that is too short for all prompts has
    fewer. ValueError where no kind is long enough.
    """
    by_kind, found = {}, []
    for row in prompt_files.rows(texts, most_characters=None):
        by_kind.setdefault(row.kind, []).extend(tokenizer(
            row.messages[-1]["content"] + "\n\n", add_special_tokens=False, split_special_tokens=True)["input_ids"])
    for kind, tokens in by_kind.items():
        for number in range(min(PER_KIND, len(tokens) // length)):
            piece = tokens[number * length : (number + 1) * length]
            if dialogue.has_template(tokenizer):
                ids = dialogue.tokenise(dialogue.of_user(tokenizer.decode(piece, skip_special_tokens=True)), tokenizer)
            else:
                ids = torch.cat([dialogue.plain("", tokenizer), torch.tensor(piece)])
            found.append((f"{kind}-{length}-{number}", kind, ids))
    if not found:
        raise ValueError(f"no kind of text in {texts} has {length} tokens; give a smaller length, or a folder with "
                         "more text")
    return PromptSet(*zip(*found))


def _row(reader: str, name: str, tally: pd.DataFrame, price, rng: np.random.Generator) -> dict[str, object]:
    """The predicted speed of a drafter with a shape: tokens per round over its duration in plain rounds. Rounds within
    loops do not count.
    """
    tree, before = named(name), tally[tally["stretch"] == "before"]
    sums = (before if len(before) else tally).groupby("prompt")[["accepted", "rounds"]].sum()
    check = float((price.draft(tree) + price.check(tree.budget)) / price.plain)
    speed = stats.ratio(sums["accepted"] + sums["rounds"], sums["rounds"] * check, rng)
    return dict(kind=CHAIN if tree.is_path else TREE, drafter=reader, shape=name, check=check,
                accepted=sums["accepted"].sum() / sums["rounds"].sum(), speedup=speed.value, low=speed.low,
                high=speed.high, n_prompts=len(sums))
