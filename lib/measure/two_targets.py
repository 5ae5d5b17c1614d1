"""Acceptance of the drafters that need no model, for several targets on the same plain texts: which conclusions hold on
all of them? The table "targets" holds estimates alone, and nothing that a target wrote.
"""

from collections.abc import Iterator, Sequence

import numpy as np
import pandas as pd

from lib.cost import candidates
from lib.decoding import loop
from lib.decoding.checks import checkable
from lib.drafters.text_drafters import LookupDrafter, NgramDrafter, SuffixAutomatonDrafter
from lib.drafters.text_index import count_tables
from lib.forward.load import load_pair
from lib.lab import stats
from lib.lab.chapter import Store
from lib.models.prompts import FAMILY, PromptSet
from lib.models.prompts import load as load_prompts
from lib.replay import acceptance, simulated
from lib.trees import named

SHAPES = ("chain", "kary:2")
DEEPEST = 16  # levels of the longest chain


def measure(store: Store, *, targets: Sequence[str], choose_prompts: int, judge_prompts: int, new_tokens: int,
            budgets: Sequence[int], dtype: str, device: str, seed: int) -> None:
    """Writes the table "targets": target, drafter, family, budget, quantity ("length" accepted per round, or "rate" per
    draft token), value, low, high, n.

    choose_prompts, judge_prompts: of each kind; n-grams are counted in answers to the first. Rounds within loops do not
    count. A target that is there is not measured again.
    """
    table = store.open("targets")
    for name in targets:
        if name in {target for target, *_ in table.keys()}:
            continue
        pair, rng = load_pair(name, dtype=dtype, device=device), np.random.default_rng(seed)
        limit = pair.window - new_tokens - DEEPEST - 1 if pair.window else None
        texts = load_prompts(FAMILY, pair.tokenizer, limit=limit, first=choose_prompts + judge_prompts)
        rows = pd.concat(rows_of(pair, *texts.split(choose_prompts, judge_prompts), budgets, new_tokens))
        before, by = rows[rows["stretch"] == "before"], ["target", "drafter", "family", "budget"]
        table.extend(pd.concat([
            stats.summarise(before, by, "accepted", bottom, rng).assign(quantity=quantity)
            for quantity, bottom in (("length", "rounds"), ("rate", "drafted"))]))
        print(f"{name}: {len(set(before['prompt']))} prompts count")


def rows_of(pair, choosing: PromptSet, judged: PromptSet, budgets: Sequence[int],
            new_tokens: int) -> Iterator[pd.DataFrame]:
    """By prompt, drafter and tree the rounds, and their drafted and accepted tokens."""
    answers = loop.continuations(pair.target, choosing.ids, max_new_tokens=new_tokens,
                                 eos_token_id=pair.eos_token_ids)
    tables = count_tables([ids.tolist() for ids in choosing.ids], answers, pair.vocabulary)
    recorded = candidates.record(pair, (), judged, new_tokens, DEEPEST)
    trace = recorded.trace
    replayed = {"lookup": LookupDrafter(), "sam": SuffixAutomatonDrafter(), "ngrams": NgramDrafter(tables)}
    trees = {(family, budget): named(f"{family}@{budget}") for family in checkable(pair.target, SHAPES)
             for budget in budgets if family != "chain" or budget <= DEEPEST}
    for (family, budget), tree in trees.items():
        about = dict(target=pair.target_name, family=family, budget=budget)
        for name, drafter in replayed.items():
            walk = simulated.rounds(recorded, drafter, tree)
            yield acceptance.tally_walk(trace, walk).assign(drafter=name, **about)
