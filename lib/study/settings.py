"""The parameters of the notebooks: one class per notebook with their types and ranges; defaults stand in the notebooks.

The command checks profiles and `--set` by these classes before torch is imported. A notebook checks its own globals by
the same class in the cell that measures: `chapter.measure("lib.study.speed", Speed.of(globals()))`, where `files` and
`parameters` make the fingerprint of rows. A new parameter is one line in the notebook's `parameters` cell and one here.
"""

import re
from collections.abc import Callable
from importlib import import_module
from pathlib import Path
from typing import Annotated, Literal, Self

from pydantic import AfterValidator, Field, model_validator
from pydantic.types import NonNegativeFloat, NonNegativeInt, PositiveFloat, PositiveInt

from lib.drafters import registry as drafters
from lib.lab.parameters import Distinct, Listed, Parameters, Some, nearest
from lib.lab.provenance import HOME, is_rendering
from lib.lab.units import unit
from lib.models import prompts, registry
from lib.trees import named
from lib.trees.names import FREQUENT

MOST_NODES = 512  # draft nodes: more than a forward pass can verify at a gain
NUMBER_FORMATS = ("auto", "float32", "float64", "bfloat16", "float16", "int8", "stored")
COSTS = HOME / "data" / "costs"


def text(read: Callable[[str], object]) -> type:
    """The type of a text that a function can read, whose errors become the parameter's. A finished run that is only
    rendered needs no files: another machine may have measured it.
    """
    def check(value: str) -> str:
        try:
            _ = is_rendering() or read(value)
        except OSError as error:
            raise ValueError(str(error)) from error
        return value

    return Annotated[str, AfterValidator(check)]


def read_tree(name: str) -> None:
    """The name of a tree or growth rule with its budget."""
    if max(map(int, re.findall(r"\d+", name)), default=0) > MOST_NODES:
        raise ValueError(f"{name!r} is too large; a draft tree has at most {MOST_NODES} nodes")
    named(name, acceptance=[0.5])


def costs_file(name: str | Path) -> Path:
    """A CSV file of costs by its path, or one of data/costs by its name. ValueError where there is none."""
    files = {path.stem: path for path in COSTS.glob("*.csv")}
    path = files.get(name) or Path(name).expanduser()
    if not path.is_file():
        raise ValueError(f"there are no costs {name!r}: {nearest(str(name), files)} Or give a CSV file")
    return path


Nodes = Annotated[int, Field(ge=1, le=MOST_NODES)]
Probability = Annotated[float, Field(ge=0, le=1)]
NumberFormat = Annotated[str, Field(pattern=r"^({0})(\|({0}))?$".format("|".join(NUMBER_FORMATS)))]  # TARGET|DRAFTER
Device = Literal["cpu", "cuda", "mps"]
TreeName = text(read_tree)
Family = text(lambda name: read_tree(f"{name}@1"))
FamilyOrFrequent = text(lambda name: name == FREQUENT or read_tree(f"{name}@1"))
Pair = text(registry.sources)
DrafterSpec = text(drafters.parse)
EngineDrafter = text(lambda name: name in drafters.DRAFTERS or registry.source(name))
Engine = text(lambda spec: import_module("lib.engines.registry").parse(spec).environment.python)  # brings torch
Prompts = text(lambda path: path and prompts.rows(prompts.file_of(path, has_template=True)))  # "": as suits the target
Costs = text(lambda name: name and costs_file(name))  # "": none
Existing = text(lambda path: Path(path).expanduser().stat())  # a file or folder; "": none


class Settings(Parameters):
    """What all notebooks share. run_dir: the folder of the run, "" to keep nothing."""

    run_dir: str

    @property
    def parameters(self) -> dict[str, object]:
        """What rows depend on, by name."""
        return self.model_dump(exclude={"run_dir", "interactive"})

    @property
    def files(self) -> list[Path]:
        """The files on which rows depend."""
        return []


class Shapes(Settings):
    """Notebook 01."""

    families: Distinct[Family]
    budget: Nodes
    max_budget: Annotated[int, Field(ge=4, le=MOST_NODES)]
    shape: TreeName
    node: NonNegativeInt
    prefix_length: NonNegativeInt
    greedy_by_rank: Listed[Probability]
    sampled_by_rank: Listed[Probability]
    near: Probability
    interactive: bool


class Attention(Settings):
    """Notebook 03."""

    batches: Some[PositiveInt]
    prefixes: Some[NonNegativeInt]
    drafts: Some[Nodes]
    dtypes: Some[NumberFormat]
    query_heads: PositiveInt
    kv_heads: PositiveInt
    head_dim: PositiveInt
    shape: Family
    repeats: PositiveInt
    cell_seconds: PositiveFloat
    memory_limit_gb: PositiveFloat
    threads: NonNegativeInt
    device: Device
    seed: NonNegativeInt


class OfPairs(Settings):
    """What the notebooks share that run pairs of models on prompts."""

    pairs: Some[Pair]
    prompts: Prompts
    judge_prompts: PositiveInt
    dtype: NumberFormat
    device: Device
    seed: NonNegativeInt

    @property
    def files(self) -> list[Path]:
        """The files of models, heads and prompts."""
        paths = {prompts.file_of(self.prompts, has_template) for has_template in (False, True)}
        for target, draft_model in map(registry.sources, self.pairs):
            paths.update(drafters.folders_of(target.name), registry.files_of(target))
            paths.update(registry.files_of(draft_model) if draft_model else ())
        return sorted(path for path in paths if path.exists())

    @model_validator(mode="after")
    def possible(self) -> Self:
        """There are enough prompts of each kind, and what drafters need: heads for the first target, a draft model."""
        if is_rendering():
            return self
        sources = [registry.sources(pair) for pair in self.pairs]
        for has_template in {target.written not in registry.SHIPPED_NAMES for target, _ in sources}:
            rows = prompts.rows(prompts.file_of(self.prompts, has_template))
            names, choose = [row.name for row in rows], getattr(self, "choose_prompts", 0)
            if not (self.prompts and choose and 2 <= len({*map(unit, names)}) <= prompts.HALVED):
                prompts.check_enough(names, [row.kind for row in rows], choose, self.judge_prompts)
        for spec in getattr(self, "drafters", []):
            for need in drafters.needs(spec):
                if need != drafters.DRAFT_MODEL:
                    drafters.folder_of(sources[0][0].name, need)
                elif not any(draft_model for _, draft_model in sources):
                    raise ValueError(f"drafters name {spec!r}, but no pair has a draft model: name one, as in "
                                     f"{self.pairs[0]}|DRAFTER, or leave it out")
        return self


class Acceptance(OfPairs):
    """Notebook 02."""

    drafters: Distinct[DrafterSpec]
    choose_prompts: PositiveInt
    new_tokens: PositiveInt
    temperatures: Some[NonNegativeFloat]
    families: Distinct[FamilyOrFrequent]
    budgets: Some[Nodes]
    budget: Nodes
    chain_lengths: Distinct[Nodes]
    live_shapes: Some[TreeName]
    live_tokens: PositiveInt
    publish: Existing
    interactive: bool


class Rules(OfPairs):
    """Notebook 04."""

    vocabulary: PositiveInt
    languages: PositiveInt
    proof_languages: PositiveInt
    proof_shapes: Some[TreeName]
    exact_shapes: Some[TreeName]
    temperatures: Some[PositiveFloat]
    agreement: Probability
    agreements: Distinct[Probability]
    chain_lengths: Some[Nodes]
    live_shapes: Some[TreeName]
    live_temperatures: Some[PositiveFloat]
    live_tokens: PositiveInt
    samples: PositiveInt
    tested_prompts: PositiveInt
    test_temperature: PositiveFloat
    test_top_k: PositiveInt


class Speed(OfPairs):
    """Notebook 05."""

    drafters: Distinct[DrafterSpec]
    logs: Existing
    endpoint: Annotated[str, Field(pattern=r"^(https?://\S+)?$")]
    served: str
    temperature: NonNegativeFloat | None
    costs: Costs
    formats: Distinct[NumberFormat]
    engines: Distinct[Engine]
    engine_drafters: Distinct[EngineDrafter]
    engine_lengths: Some[Nodes]
    choose_prompts: PositiveInt
    new_tokens: PositiveInt
    batches: Some[PositiveInt]
    raced: Listed[NonNegativeInt]
    raced_beside: NonNegativeInt
    most_raced: PositiveInt
    most_nodes: Nodes
    most_depth: PositiveInt
    sampled_temperature: NonNegativeFloat
    lengths: Distinct[PositiveInt]
    threads: NonNegativeInt

    @property
    def parameters(self) -> dict[str, object]:
        """What rows depend on; what is measured beside the reference only brings more rows to a finished run."""
        return self.model_dump(exclude={"run_dir", "formats", "engines", "lengths", "sampled_temperature"})

    @property
    def files(self) -> list[Path]:
        """Those of pairs and prompts, the log and the costs."""
        costs, logs = [self.costs] if self.costs else [], [self.logs] if self.logs else []
        return [*super().files, *map(costs_file, costs), *(Path(path).expanduser() for path in logs)]

    @model_validator(mode="after")
    def consistent(self) -> Self:
        """A number of calls for each batch size, and costs for answers from elsewhere."""
        if len(self.raced) != len(self.batches):
            raise ValueError(f"raced is {self.raced}; give one number of calls for each of batches {self.batches}")
        if self.endpoint and not self.served:
            raise ValueError("served is empty; give the name under which the endpoint serves the model")
        if (self.endpoint or self.logs) and not self.costs:
            raise ValueError("costs is empty, and answers from elsewhere cannot be timed here; give a file that "
                             "lib/engines/measure_served.py writes, or a name in data/costs")
        return self


class Report(Settings):
    """Notebook 06. reads: the folder of a finished run, "" for the committed one."""

    reads: Existing


NOTEBOOKS: dict[str, type[Settings]] = {
    "01_shapes": Shapes, "02_acceptance": Acceptance, "03_attention_timing": Attention, "04_rules": Rules,
    "05_speed": Speed, "06_report": Report}
