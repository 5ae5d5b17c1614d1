"""Live decoding in the acceptance study: rules and drafters that replay cannot give exactly, what merging drafts saves,
and the time that replay takes beside live decoding.
"""

from collections import defaultdict
from dataclasses import dataclass, replace
from itertools import product
from typing import Iterator, Sequence

import numpy as np
import pandas as pd
import torch
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence

from lib import replay
from lib.decoding.loop import in_batches
from lib.decoding.loop import generate
from lib.decoding.records import Generation
from lib.drafters.merged import MergedDrafter, Sharing, node_bytes
from lib.drafters.registry import make
from lib.lab import timing
from lib.replay import acceptance
from lib.replay.rank_paths import RankPaths, windows
from lib.replay.trace import Trace, loop_start
from lib.studies.acceptance import CHAINED_REPLAY, EVERY_START, INDEX, LIVE
from lib.trees import shapes
from lib.trees.tree import Tree
from lib.verify.draft import PROPOSALS
from lib.verify.rules import simplest_rule

ROWS = 16  # prompts per batch
WITHOUT_MODEL = ("lookup", "random", "oracle")
GREEDY_DRAFTERS = ("top_k", "merged", *WITHOUT_MODEL)

NODES, POSITIONS = 64, 20_000  # of the benchmark's trees and of the trace on which they are replayed
TREES_PER_CALL = 10
CONTEXT = 16  # tokens before a live continuation


@dataclass(frozen=True)
class Live:
    """One live setting: a proposal of the pair's draft model or another kind of drafter (see `drafters.registry`), a
    rule, a shape's name and a temperature.
    """

    drafter: str
    rule: str
    shape: str
    temperature: float


def rules_grid(shape_names: Sequence[str], temperatures: Sequence[float]) -> list[Live]:
    """Each proposal of one language model under its simplest rule, for each shape and temperature above 0."""
    return [Live(proposal, simplest_rule(proposal), shape, temperature) for shape in shape_names
            for temperature in temperatures if temperature for proposal in PROPOSALS]


def drafters_grid(shape_names: Sequence[str]) -> list[Live]:
    """The language model, look-up, merging and the two controls, for each shape, greedily."""
    return [Live(kind, "greedy", shape, 0.0) for shape in shape_names for kind in GREEDY_DRAFTERS]


def grid_of(pair, shape_names: Sequence[str], temperatures: Sequence[float]) -> list[Live]:
    """All settings of `rules_grid` and `drafters_grid`; for a target alone those that need no draft model."""
    every = rules_grid(shape_names, temperatures) + drafters_grid(shape_names)
    return [each for each in every if pair.draft_model is not None or each.drafter in WITHOUT_MODEL]


def run(setting: Live, pair, others: Sequence, prompts, continuations: Sequence[Sequence[int]], *, new_tokens: int,
        seed: int) -> pd.DataFrame:
    """`tally` of one setting over prompts (see `recording.Prompts`), with the setting's columns.

    others: further models, which the merged drafter takes beside the pair's own; continuations: what the oracle knows,
    as far past the limit as its trees reach. seed: of drafts and text; settings with other seeds are independent.
    """
    generator = torch.Generator().manual_seed(seed)
    if setting.drafter in PROPOSALS:
        drafter = make("model", pair, proposal=setting.drafter, temperature=setting.temperature or 1.0)
    else:
        options = {"merged": dict(models=[pair.draft_model, *others]), "random": dict(generator=generator),
                   "oracle": dict(prompts=prompts.ids, continuations=continuations, generator=generator)}
        drafter = make(setting.drafter, pair, **options.get(setting.drafter, {}))
    done = decode(
        pair.target, drafter, prompts.ids, shape=setting.shape, rule=setting.rule, temperature=setting.temperature,
        max_new_tokens=new_tokens, eos_token_id=pair.eos_token_ids, generator=torch.Generator().manual_seed(seed))
    return tally(done, prompts.names, prompts.kinds).assign(
        pair=pair.name, **vars(setting), budget=shapes.parse(setting.shape).budget)


def decode(target, drafter, prompts: Sequence[Tensor], *, rows: int = ROWS, **settings) -> Generation:
    """`generate` over prompts int64[T] of any lengths, in batches of at most `rows`; the rounds' `row` counts over all
    prompts.
    """
    rounds, written = [], []
    for padded, mask in in_batches(prompts, rows):
        done = generate(target, drafter, padded, attention_mask=mask, **settings)
        rounds += [replace(record, row=record.row + len(written)) for record in done.rounds]
        written += done.new_tokens
    return Generation(pad_sequence([torch.tensor(row) for row in written], batch_first=True), rounds, written)


def tally(done: Generation, names: Sequence[str], kinds: Sequence[str]) -> pd.DataFrame:
    """One row for each prompt and stretch, as `acceptance.evaluate` has them for replayed rounds."""
    loops = [loop_start(row) for row in done.new_tokens]
    rows, looped, drafted, accepted = np.array(
        [(each.row, each.position - 1 >= loops[each.row], each.drafted, each.accepted) for each in done.rounds],
        dtype=np.int64).reshape(-1, 4).T
    return acceptance.tally(names, kinds, rows, looped, drafted=drafted, accepted=accepted)


# ------------------------------------------------------------------------------------------------------------- merging


class _Apart(MergedDrafter):
    """A merged drafter that keeps each row's drafts before they are merged, as `apart`."""

    def propose(self, shape, draws):
        merged = super().propose(shape, draws)
        self.apart = list(zip(*(drafter.drafts for drafter in self.drafters)))
        return merged


def merging(pair, models: Sequence, prompts, shape_names: Sequence[str], *, new_tokens: int) -> pd.DataFrame:
    """The table `merging`: for each shape, the first two, three, .. models and each prompt, the nodes that were drafted
    greedily with each sequence apart, with each drafter's tree apart, and in one tree (SpecInfer, Miao et al. 2024,
    section 3).

    models: drafters of the pair's target. prompts: names, kinds, ids (see `recording.Prompts`).
    """
    rows = []
    for shape, count in product(shape_names, range(2, len(models) + 1)):
        drafter, done = _Apart.of(pair, models=models[:count]), 0
        for padded, mask in in_batches(prompts.ids, ROWS):
            sharing: dict[int, Sharing] = defaultdict(Sharing)

            def note(alive, drafts, decided):
                for row, own, draft in zip(alive, drafter.apart, drafts):
                    sharing[row] = sharing[row].and_round(own, draft)

            generate(pair.target, drafter, padded, attention_mask=mask, shape=shape, max_new_tokens=new_tokens,
                     eos_token_id=pair.eos_token_ids, observe=note)
            rows += [dict(target=pair.target_name, shape=shape, drafters=count, prompt=prompts.names[done + row],
                          kind=prompts.kinds[done + row], **vars(found), node_bytes=node_bytes(pair.target))
                     for row, found in sharing.items()]
            done += len(padded)
    return pd.DataFrame(rows)


# ----------------------------------------------------------------------------------------------------- time of a replay


def replay_speed(recorded: Trace, drafter_name: str, target, drafter, prompts: Sequence[Tensor], *, new_tokens: int,
                 seconds: float, generator: torch.Generator, nodes: int = NODES,
                 positions: int = POSITIONS) -> pd.DataFrame:
    """The table `replay_speed`: one row for each way to find what a tree accepts (replay at every start, replay of
    chained rounds, live decoding), and one for the index that replay makes once per trace.

    recorded: a trace of the pair, its rows repeated up to `positions`. Replay gets random trees that it has not seen.
    Live, one such tree continues the last `CONTEXT` tokens of `prompts` greedily by `new_tokens`, all rows in one
    batch, and the time, to which so short a prefill adds little, is scaled to the positions.
    """
    wide = widened(recorded, positions)
    trees = random_trees(nodes, np.random.default_rng(generator.initial_seed()))
    one, prompts = next(trees), [prompt[-CONTEXT:] for prompt in prompts]
    settings = dict(shape=one, rows=len(prompts), max_new_tokens=new_tokens)
    covered = sum(len(row) - 1 for row in decode(target, drafter, prompts, **settings).new_tokens)
    flat, first = windows(wide.drafter_ranks(drafter_name))
    inside = np.arange(first.shape[1])[None] < wide.lengths[:, None]
    ways = {
        EVERY_START: lambda: [replay.accepted_lengths(wide, next(trees), drafter_name) for _ in range(TREES_PER_CALL)],
        CHAINED_REPLAY: lambda: [replay.efficiency(wide, next(trees), drafter_name) for _ in range(TREES_PER_CALL)],
        INDEX: lambda: RankPaths(flat, first[inside]),
        LIVE: lambda: decode(target, drafter, prompts, **settings),
    }
    scale = {EVERY_START: 1 / TREES_PER_CALL, CHAINED_REPLAY: 1 / TREES_PER_CALL, INDEX: 1.0,
             LIVE: wide.positions / covered}
    timings = timing.interleaved(ways, repeats=15, seconds=seconds, generator=generator)
    frame = pd.DataFrame([
        dict(way=way, nodes=nodes, positions=wide.positions, repeats=took.repeats, seconds=took.median * scale[way],
             lower=took.lower * scale[way], upper=took.upper * scale[way]) for way, took in timings.items()])
    live = frame.set_index("way").loc[LIVE, "seconds"]
    return frame.assign(trees_a_second=1 / frame["seconds"], times_live=live / frame["seconds"])


def random_trees(nodes: int, generator: np.random.Generator) -> Iterator[Tree]:
    """Random trees without end: each new node becomes the child of a node drawn uniformly."""
    while True:
        yield Tree([-1, *(int(generator.integers(0, size)) for size in range(1, nodes + 1))])


def widened(recorded: Trace, positions: int) -> Trace:
    """A trace of at least so many positions: its rows in turn, repeated. ValueError for a trace without any."""
    if not recorded.positions:
        raise ValueError("the trace has no transitions to repeat; record one with longer continuations")
    rows = np.tile(np.arange(len(recorded.lengths)), positions // recorded.positions + 1)
    return recorded.select(rows[: np.searchsorted(np.cumsum(recorded.lengths[rows]), positions) + 1])
