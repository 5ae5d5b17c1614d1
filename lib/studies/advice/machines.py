"""Other machines: their recommendations for the same target, and their costs of a round, from runs of notebook 06."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

import pandas as pd

from lib.cost import recommendation, roofline
from lib.cost.recommendation import PLAIN, Recommendation
from lib.cost.recommending import RULER
from lib.cost.round_cost import CostTable, RoundCost
from lib.lab import processor, provenance
from lib.lab.findings import Results
from lib.studies.advice.schema import NOTEBOOK

HERE = "this machine"

@dataclass(frozen=True)
class Machine:
    """A machine on which notebook 06 ran. name: its processor and vector units, or its GPU; run: that run's tables."""

    name: str
    made: Recommendation
    costs: CostTable
    run: Mapping[str, pd.DataFrame] = field(default_factory=dict)

    def prices(self, batch: int, here: Mapping[str, RoundCost]) -> dict[str, RoundCost]:
        """The cost of rounds there by drafter; here: the same on this machine. A drafter that was not timed there takes
        as large a share of a plain round as it does here, as does growing trees. Empty for a batch size that was not
        timed there.
        """
        cells, target = self.costs.cells, self.made.target
        if (target, RULER, batch) not in cells:
            return {}
        check = cells[target, RULER, batch]
        return {name: replace(cells[target, name, batch], plain=check.plain, check=check.check).growing_as(own)
                if (target, name, batch) in cells else check.drafting_as(own) for name, own in here.items()}

    def timed(self, batch: int) -> set[str]:
        """The drafters whose rounds were timed there at a batch size."""
        return {drafter for target, drafter, size in self.costs.cells if (target, size) == (self.made.target, batch)}

    def grew(self, batch: int) -> set[str]:
        """Those of `timed` that grew trees in these rounds."""
        return {name for name in self.timed(batch) if self.costs.cells[self.made.target, name, batch].grown}


def of_runs(folders: Sequence[str], target: str) -> list[Machine]:
    """The machines of runs. ValueError for a folder without a recommendation and its costs, for another target, and
    for two runs on machines of the same name.
    """
    found = [_of_run(Path(folder), target) for folder in folders]
    for at, one in enumerate(found):
        if one.name in {other.name for other in found[:at]}:
            raise ValueError(f"elsewhere names {folders[at]}, a run on {one.name} as another one: name one run for "
                             "each kind of machine")
    return found


def _of_run(folder: Path, target: str) -> Machine:
    run = Results(folder)
    if not (folder / recommendation.FILE).exists() or "costs" not in run:
        raise ValueError(f"elsewhere names {folder}, which holds no {recommendation.FILE} with its table of costs: "
                         "name the folder of a run of notebook 06")
    made = recommendation.load(folder / recommendation.FILE)
    if made.target != target:
        raise ValueError(f"elsewhere names {folder}, a run for the target {made.target}, not {target}: name a run for "
                         "the same target")
    facts = provenance.machine_of(run.record, NOTEBOOK)
    return Machine(processor.title(facts), made, CostTable(run["costs"]), run)


def launch_bound(rows: pd.DataFrame, parameters: float, here: str = "") -> dict[str, float]:
    """Of machines whose plain step takes more than `roofline.LAUNCH_BOUND` times as long as reading the target's
    weights: how many times. Machines of which that is not known are left out.

    rows: the table "advice_machines"; parameters: numbers of the target; here: the machine that is called `HERE`.
    """
    first = rows.sort_values("batch").drop_duplicates("machine")
    times = {HERE if row.machine == here else row.machine: roofline.reads(
        row.machine, row.dtype, parameters, row.batch / row.plain) for row in first.itertuples()}
    return {name: found for name, found in times.items() if found > roofline.LAUNCH_BOUND}


def of_run(run: Results) -> dict[str, float]:
    """`launch_bound` of a run's machine and those beside it; none where its tables lack the target's size."""
    sizes = run["models"].set_index("model")["parameters"] if "models" in run else {}
    made = recommendation.load(run.run_dir / recommendation.FILE)
    if made.target not in sizes:
        return {}
    own = Machine(processor.title(provenance.machine_of(run.record, NOTEBOOK)), made, CostTable(run["costs"]))
    rows = [table([own]), *([run["advice_machines"]] if "advice_machines" in run else [])]
    return launch_bound(pd.concat(rows), sizes[made.target], own.name)


def table(machines: Sequence[Machine]) -> pd.DataFrame:
    """The table "advice_machines": what was recommended on each machine at each batch size."""
    rows = [dict(machine=machine.name, target=machine.made.target, dtype=machine.made.dtype,
                 threads=machine.made.threads, drafters=", ".join(machine.made.drafters), batch=own.batch,
                 drafter=own.drafter, shape=own.tree, budget=own.budget, plain=own.tokens_per_second[PLAIN].value,
                 predicted=own.predicted, measured=own.speedup.value, measured_low=own.speedup.low,
                 measured_high=own.speedup.high, judged=own.prompts)
            for machine in machines for own in machine.made.by_batch]
    columns = ["machine", "target", "dtype", "threads", "drafters", "batch", "drafter", "shape", "budget", "plain",
               "predicted", "measured", "measured_low", "measured_high", "judged"]
    return pd.DataFrame(rows, columns=columns)
