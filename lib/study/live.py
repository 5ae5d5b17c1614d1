"""Live decoding for what no trace decides: the tables "live" and "expected".

Rules that sample their children decode live, beside their expectation from text that the target wrote. Drafters whose
drafts depend on more than the text, such as adaptive ones, decode greedily, one prompt at a time.
"""

from collections.abc import Mapping, Sequence

import numpy as np
import pandas as pd

from lib.decoding.loop import generate, in_batches
from lib.drafters.registry import DRAFTERS, LIVE, make, parse
from lib.lab import cluster
from lib.lab.chapter import Store
from lib.models.prompts import PromptSet
from lib.replay import acceptance, expectation, recording
from lib.replay.trace import loops
from lib.trees import named
from lib.verify.rules import RULES

SAMPLED_ROWS = 16  # prompts per batch of sampled decoding
BY_NODE = ("multi_step", "k_seq", "without_replacement")  # rules that decide node by node
Setting = tuple[str, str, str, float]  # a drafter's spec, a verification rule, the name of a tree, and a temperature


def decode(store: Store, pairs: Sequence, prompts: PromptSet, settings: Sequence[Setting], plain: Mapping[str, list],
           new_tokens: int, seed: int) -> None:
    """Adds the missing rows of the table "live". pairs: of one target. plain: by prompt the target's greedy text."""
    table, target = store.open("live"), pairs[0].target_name
    done = {key[:5] for key in table.keys()}
    missing = [setting for setting in settings if (target, *setting) not in done]
    for rows in cluster.spread(live_rows, missing, pairs, prompts, plain, new_tokens, seed):
        table.extend(rows)


def live_rows(setting: Setting, pairs: Sequence, prompts: PromptSet, plain: Mapping[str, list], new_tokens: int,
              seed: int) -> pd.DataFrame:
    """A row for each prompt; a drafter that merges models takes those of all pairs."""
    spec, rule, shape, temperature = setting
    models = [pair.draft_model for pair in pairs if pair.draft_model is not None]
    options = {"models": models} if parse(spec)[0] == "merged" else {}
    if temperature:
        options |= {"proposal": RULES[rule].made_for, "temperature": temperature}
    drafter, rounds, texts = make(spec, pairs[0], options), [], []
    for number, (ids, mask) in enumerate(in_batches(prompts.ids, SAMPLED_ROWS if temperature else 1)):
        done = generate(pairs[0].target, drafter, ids, attention_mask=mask, shape=shape, rule=rule,
                        temperature=temperature, max_new_tokens=new_tokens, eos_token_id=pairs[0].eos_token_ids,
                        generator=cluster.seeded(seed, *setting, number))
        rounds += [(len(texts) + record.row, record.drafted, record.accepted) for record in done.rounds]
        texts += done.new_tokens
    rows, drafted, accepted = np.array(rounds, dtype=np.int64).reshape(-1, 3).T
    same = [bool(temperature) or text == plain[name][: len(text)] for name, text in zip(prompts.names, texts)]
    return acceptance.tally(prompts.names, rows, drafted=drafted, accepted=accepted).assign(
        target=pairs[0].target_name, drafter=spec, rule=rule, shape=shape, temperature=temperature, identical=same,
        loops=list(map(loops, texts)))


def possible(pairs: Sequence) -> list[str]:
    """The specs of the drafters that decode live alone, of those that the target of these pairs can have."""
    models = sum(pair.draft_model is not None for pair in pairs)
    return [spec for name, kind in DRAFTERS.items() for spec in kind.specs
            if is_live(spec) and models >= (2 if name == "merged" else bool(kind.needs))
            and not kind.drafter.refusal(pairs[0].target)]


def is_live(spec: str) -> bool:
    """Whether no trace decides the rounds of such a drafter; controls are none."""
    traits = DRAFTERS[parse(spec)[0]].traits
    return traits.replay == LIVE and not traits.control


# --------------------------------------------------------------------------------------------------------- expectations


def expect(store: Store, pair, prompts: PromptSet, shapes: Sequence[str], temperatures: Sequence[float],
           new_tokens: int, seed: int) -> None:
    """Adds the missing rows of the table "expected": for each prompt, rule, shape and temperature above 0 the chained
    rounds over a text of `new_tokens` tokens that the pair's target wrote, which rules and shapes share.
    """
    table = store.open("expected")
    done, trees = set(table.frame()["temperature"]), {shape: named(shape) for shape in shapes}
    deepest = max(tree.max_depth for tree in trees.values())
    siblings = 1 + max(int(tree.rank.max()) for tree in trees.values())
    for temperature in filter(None, temperatures):
        if temperature in done:
            continue
        trace = recording.record(
            pair.target, {"model": make("model", pair)}, prompts.ids, names=prompts.names, kinds=prompts.kinds,
            max_new_tokens=new_tokens - 1, beyond=deepest + 1, temperature=temperature, siblings=siblings,
            eos_token_id=pair.eos_token_ids, seed=f"{seed}/{temperature}")
        frames = []
        for shape, tree in trees.items():
            survival = {rule: expectation.survival(trace, tree, "model", rule) for rule in BY_NODE}
            if tree.is_path:
                survival["block"] = expectation.block_survival(trace, tree.max_depth, "model")
            by_rule = {rule: expectation.tally(trace, chances) for rule, chances in survival.items()}
            by_rule["naive"] = acceptance.tally_walk(trace, acceptance.rounds_of(trace, tree, "model"))
            frames += [rows.drop(columns="drafted", errors="ignore").assign(rule=rule, shape=shape)
                       for rule, rows in by_rule.items()]
        table.extend(pd.concat(frames).assign(target=pair.target_name, temperature=temperature,
                                              loops=np.tile(trace.looping, len(frames))))
