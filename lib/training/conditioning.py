"""What conditioning on the parent token buys: heads that learn alike from the same passes of a target.

`python -m lib.training.conditioning` trains them, resuming, compares them by replay, and writes the table of
data/results/conditioning.csv, with conditioning.json on what made it. `--costs` times drafting too, on a quiet machine.
"""

import argparse
import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pandas as pd
import torch
from safetensors.torch import load_file, save
from torch import Tensor, nn

from lib import forward
from lib.drafters import make
from lib.engines.methods import Way
from lib.lab import atomic_file, provenance, stats
from lib.lab.chapter import Store
from lib.models import load
from lib.models.registry import SMOLLM2
from lib.replay import recording
from lib.study import acceptance, costs
from lib.study.bench import CHOOSING, JUDGING, Bench, of_pair, without_loops
from lib.study.candidates import static_ways
from lib.training.heads import OPTIONS, feature_layers, learn
from lib.training.loop import TrainingPlan

FOLDER = Path("data/runs/conditioning")  # of passes and heads; another training needs an empty one
TABLE = provenance.HOME / "data" / "results" / "conditioning.csv"
# The learning rates of `heads.PLAN`, with AdamW alone, since Muon needs units for bfloat16. Batches suit one core.
PLAN = TrainingPlan(500, 1, 256, learning_rate=3e-3, decay=0.9, seed=11, windows=250, stride=2, muon=False)
DRAFTED = 4096  # tokens that heads draft
# All learn four depths. The blocks of `dflash` and `dspark` differ in the bias from the parent token alone.
BLOCK = {"block_size": 4, "shifted": True, "qk_norm": False, "learned_places": True}
HEADS = {"dspark": BLOCK | {"markov_rank": 64}, "dflash": BLOCK, "medusa": OPTIONS["medusa"], "eagle3": {}}
PROMPTS = dict(prompts="", choose_prompts=2, judge_prompts=6, new_tokens=128, seed=PLAN.seed)
ROWS = (4, 8, 16, 32)  # of a check: a draft and the root


@dataclass(frozen=True)
class KeptPasses:
    """A frozen target whose forward pass over each batch is computed once, and then read from a folder."""

    target: nn.Module
    folder: Path

    def __getattr__(self, name: str):
        return getattr(self.target, name)

    @torch.no_grad()
    def base_model(self, tokens: Tensor, **options) -> SimpleNamespace:
        """With the `hidden_states`, by layer, that heads read, rounded to bfloat16."""
        path = self.folder / f"{provenance.digest(tokens.tolist())[:16]}.safetensors"
        if not path.exists():
            hidden = self.target.base_model(tokens, **options).hidden_states
            read = *feature_layers(len(hidden) - 1), -1
            atomic_file.replace(path, save({str(layer): hidden[layer].bfloat16() for layer in read}))
        return SimpleNamespace(hidden_states={int(layer): states.float() for layer, states in load_file(path).items()})


def replay(pair) -> tuple[Bench, list[Way], pd.DataFrame]:
    """The trained heads with chains and static trees, as ways, and the rounds of each way and prompt."""
    drafters = {kind: make(kind, pair, {"folder": FOLDER / kind}) for kind in HEADS}
    mark = provenance.digest([provenance.file_digest(FOLDER / kind) for kind in HEADS])[:12]
    bench = of_pair(pair, Store(FOLDER / mark, "05", mark), SimpleNamespace(**PROMPTS), None, {1: 0}, recording.AHEAD)
    recorded = acceptance.record(bench, drafters)
    bench = without_loops(bench)
    ways = static_ways(bench, recorded, drafters, ROWS[-1] - 1)
    replayed = acceptance.replay(bench, recorded, ways, range(len(bench.parts)))
    return bench, ways, pd.DataFrame([
        dict(head=way.method, form="chain" if way.is_chain else "tree", size=1 + way.nodes, shape=way.shape_name,
             prompt=bench.prompts.names[row], part=bench.parts[row], rounds=len(sizes), accepted=sizes[:, 1].sum())
        for way in ways for row, sizes in replayed[way.name].items()])


def compare(rounds: pd.DataFrame, generator: np.random.Generator) -> pd.DataFrame:
    """The chain and the tree of each head and size that accept most per round on choosing prompts: what they accept on
    judging prompts, and how much more than those of `dflash`, and than the head's chain.
    """
    judged, by = [], ["head", "form", "rows"]
    for rows in ROWS:
        fitting = rounds[rounds["size"] <= rows].set_index(["head", "form", "shape"])
        sums = fitting[fitting["part"] == CHOOSING].groupby(level=[0, 1, 2], sort=False)[["accepted", "rounds"]].sum()
        best = (sums["accepted"] / sums["rounds"]).groupby(level=[0, 1], sort=False).idxmax()
        judged.append(fitting[fitting.index.isin(best) & (fitting["part"] == JUDGING)].assign(rows=rows))
    judged, columns = pd.concat(judged).reset_index(), ("accepted", "rounds", generator)
    return pd.concat([
        stats.summarise(judged, by, *columns).assign(quantity="accepted"),
        stats.compare(judged, ["form", "rows"], "head", "dflash", *columns).assign(quantity="accepted over dflash"),
        stats.compare(judged, ["head", "rows"], "form", "chain", *columns).assign(quantity="accepted over chain"),
    ]).merge(judged[[*by, "shape"]].drop_duplicates())


def drafting(bench: Bench, ways: Sequence[Way]) -> pd.DataFrame:
    """What drafting by each way adds to a round, in plain steps, by the timed shapes of its head."""
    rows = costs.measure(bench, ways, ROWS[-1] - 1)
    timed, curves = rows.query(costs.DRAFTING).groupby("method")["n"].sum(), costs.Costs.of(rows)
    return pd.DataFrame([dict(head=way.method, shape=way.shape_name, value=curves.draft(way, 1) / curves.plain(1),
                              n=timed[way.method], quantity="drafting") for way in ways])


def main() -> None:
    """Trains, replays, and writes the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--costs", action="store_true", help="time drafting too, on a quiet machine")
    options, generator = parser.parse_args(), np.random.default_rng(PLAN.seed)
    pair = load.load_pair(SMOLLM2, "float32")
    (FOLDER / "passes").mkdir(parents=True, exist_ok=True)
    pair = replace(pair, target=KeptPasses(pair.target.requires_grad_(False), FOLDER / "passes"))
    trained = {kind: learn(pair, kind, PLAN, FOLDER / kind, DRAFTED, settings) for kind, settings in HEADS.items()}
    bench, ways, rounds = replay(forward.load_pair(SMOLLM2))
    table = compare(rounds, generator)
    if options.costs:
        accepted = table[table["quantity"] == "accepted"].drop(columns=[*stats.FIELDS, "quantity"])
        chosen = {*accepted[["head", "shape"]].itertuples(index=False, name=None)}
        ways = [way for way in ways if (way.method, way.shape_name) in chosen]
        table = pd.concat([table, accepted.merge(drafting(bench, ways))])
    parameters = {kind: sum(map(Tensor.numel, head.parameters())) for kind, head in trained.items()}
    table = table.assign(parameters=table["head"].map(parameters)).round(4)
    facts = provenance.commit() | dict(machine=provenance.machine(), versions=provenance.imported(), plan=asdict(PLAN),
                                       drafted=DRAFTED, heads=HEADS, prompts=PROMPTS)
    table[["head", "quantity", "form", "rows", "shape", "parameters", *stats.FIELDS]].to_csv(TABLE, index=False)
    TABLE.with_suffix(".json").write_text(json.dumps(facts, indent=1) + "\n")


if __name__ == "__main__":
    main()
