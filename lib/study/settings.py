"""The parameters of the notebooks: one class per notebook with their types and ranges; defaults stand in the notebooks.

The command checks profiles and `--set` by these classes before torch is imported. A notebook checks its own globals by
the same class in the cell that measures: `chapter.measure("lib.study.speed", Speed.of(globals()))`, where `files` and
`parameters` make the fingerprint of rows. A new parameter is one line in the notebook's `parameters` cell and one here.
"""

import re
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Literal, Self

from pydantic import AfterValidator, Field, model_validator
from pydantic.types import NonNegativeFloat, NonNegativeInt, PositiveFloat, PositiveInt

from lib.drafters import registry as drafters
from lib.lab import json_text
from lib.lab.parameters import Distinct, Listed, Parameters, Some, nearest
from lib.lab.provenance import HOME
from lib.models import prompts, registry
from lib.trees import named
from lib.trees.names import FREQUENT

MOST_NODES = 512  # draft nodes: more than a forward pass can verify at a gain
NUMBER_FORMATS = ("auto", "float32", "float64", "bfloat16", "float16", "int8", "stored")
COSTS = HOME / "data" / "costs"


def read_by(read: Callable[[str], object]) -> AfterValidator:
    """A check of a parameter's text by a function that reads it, whose errors become the parameter's."""
    def check(text: str) -> str:
        try:
            read(text)
        except (LookupError, OSError) as error:
            raise ValueError(str(error)) from error
        return text

    return AfterValidator(check)


def read_tree(name: str) -> None:
    """The name of a tree or growth rule with its budget."""
    family = name.partition("@")[0]
    if family.isdecimal():
        raise ValueError(f"{family} stands where a name belongs; put a semicolon after each name if names hold commas, "
                         "as in 'chain;expansion:2,2,1;'")
    if max(map(int, re.findall(r"\d+", name)), default=0) > MOST_NODES:
        raise ValueError(f"{name!r} is too large; a draft tree has at most {MOST_NODES} nodes")
    named(name, acceptance=[0.5])


def read_format(name: str) -> None:
    """A number format, or two as TARGET|DRAFTER."""
    if not {*name.split("|", 1)} <= {*NUMBER_FORMATS}:
        raise ValueError(f"{name!r} is no number format; give one of {', '.join(NUMBER_FORMATS)}, or two as "
                         "TARGET|DRAFTER")


def read_prompts(path: str) -> None:
    """A file or folder of prompts; "" is the file that suits the target."""
    if path:
        prompts.rows(prompts.file_of(path, has_template=True))


def read_log(path: str) -> None:
    """A log whose first line can be read; "" is none."""
    if path:
        _, text = next(json_text.lines(path), ("", ""))
        if not text.strip().startswith("{"):
            raise ValueError(f"{path} begins with no object of JSON; give a log of JSON Lines")


def costs_file(name: str | Path) -> Path:
    """A CSV file of costs by its path, or one of data/costs by its name. ValueError where there is none."""
    files = {path.stem: path for path in COSTS.glob("*.csv")}
    path = files.get(name) or Path(name).expanduser()
    if not path.is_file():
        raise ValueError(f"there are no costs {name!r}: {nearest(str(name), files)} Or give a CSV file")
    return path


def read_folder(path: str) -> None:
    """A folder that exists; "" is none."""
    if path and not Path(path).expanduser().is_dir():
        raise ValueError(f"there is no folder {path}; make it first")


def read_engine(spec: str) -> None:
    """A serving engine that is installed."""
    from lib.engines.registry import parse  # brings torch

    parse(spec).engine.environment.python  # noqa: B018 - refuses


Nodes = Annotated[int, Field(ge=1, le=MOST_NODES)]
Probability = Annotated[float, Field(ge=0, le=1)]
TreeName = Annotated[str, read_by(read_tree)]
Family = Annotated[str, read_by(lambda name: read_tree(f"{name}@1"))]
DrafterSpec = Annotated[str, read_by(drafters.parse)]
NumberFormat = Annotated[str, read_by(read_format)]
Device = Literal["cpu", "cuda", "mps"]
Folder = Annotated[str, read_by(read_folder)]


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

    @model_validator(mode="after")
    def within_curves(self) -> Self:
        """The drawn trees are those of a budget of the curves."""
        if self.budget > self.max_budget:
            raise ValueError(f"budget is {self.budget}, beyond max_budget {self.max_budget}, where curves end")
        return self


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

    pairs: Some[Annotated[str, read_by(registry.sources)]]
    prompts: Annotated[str, read_by(read_prompts)]
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
        sources = [registry.sources(pair) for pair in self.pairs]
        for has_template in {target.written not in registry.SHIPPED_NAMES for target, _ in sources}:
            rows = prompts.rows(prompts.file_of(self.prompts, has_template))
            prompts.check_enough([row.name for row in rows], [row.kind for row in rows],
                                 getattr(self, "choose_prompts", 0), self.judge_prompts)
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
    families: Distinct[Annotated[str, read_by(lambda name: name == FREQUENT or read_tree(f"{name}@1"))]]
    budgets: Some[Nodes]
    budget: Nodes
    chain_lengths: Distinct[Nodes]
    live_shapes: Some[TreeName]
    live_tokens: PositiveInt
    publish: Folder
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
    drafters: Distinct[DrafterSpec]
    logs: Annotated[str, read_by(read_log)]
    endpoint: Annotated[str, Field(pattern=r"^(https?://\S+)?$")]
    served: str
    temperature: NonNegativeFloat
    costs: Annotated[str, read_by(lambda name: name and costs_file(name))]
    formats: Distinct[NumberFormat]
    engines: Distinct[Annotated[str, read_by(read_engine)]]
    engine_drafters: Distinct[Annotated[str, read_by(lambda name: name in drafters.DRAFTERS or registry.source(name))]]
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
        """What rows depend on; those of `added` only bring more rows."""
        return {name: value for name, value in super().parameters.items() if name not in self.added}

    @property
    def added(self) -> dict[str, object]:
        """What is measured beside the reference, so that a finished run can be given more of it."""
        return self.model_dump(include={"formats", "engines", "lengths", "sampled_temperature"})

    @property
    def files(self) -> list[Path]:
        """Those of pairs and prompts, the log and the costs."""
        costs = [costs_file(self.costs)] if self.costs else []
        return [*super().files, *costs, *([Path(self.logs).expanduser()] if self.logs else [])]

    @model_validator(mode="after")
    def consistent(self) -> Self:
        """A number of calls for each batch size, and one source of answers."""
        if len(self.raced) != len(self.batches):
            raise ValueError(f"raced is {self.raced}; give one number of calls for each of batches {self.batches}")
        if self.endpoint and not self.served:
            raise ValueError("served is empty; give the name under which the endpoint serves the model")
        if self.endpoint and self.logs:
            raise ValueError("both logs and an endpoint are set; set one of the two")
        if (self.endpoint or self.logs) and not self.costs:
            raise ValueError("costs is empty, and answers from elsewhere cannot be timed here; give a file that "
                             "lib/engines/measure_served.py writes, or a name in data/costs")
        return self


class Report(Settings):
    """Notebook 06. reads: the folder of a finished run, "" for the committed one."""

    reads: Folder


NOTEBOOKS: dict[str, type[Settings]] = {
    "01_shapes": Shapes, "02_acceptance": Acceptance, "03_attention_timing": Attention, "04_rules": Rules,
    "05_speed": Speed, "06_report": Report}
