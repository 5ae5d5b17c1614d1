"""Tables of logged answers: candidates at given costs, what was recommended, and text alone beside token ids."""

import re
from collections.abc import Mapping
from pathlib import Path

from lib.studies.columns import table
from lib.studies.parameters import above_zero, dtype, nodes


def _log(name: str, values: Mapping) -> None:
    """A log that can be read."""
    from lib.replay.log_lines import read
    from lib.studies.served.measure import EXAMPLE

    read(values["logs"] or EXAMPLE, values["inputs"])


def _endpoint(name: str, values: Mapping) -> None:
    """A server's url, with the name of its model, prompts and a temperature."""
    from lib.models import prompts

    if not values[name]:
        return
    if not re.fullmatch(r"https?://\S+", values[name]):
        raise ValueError(f"endpoint is {values[name]!r}; give a url such as http://127.0.0.1:8000/v1")
    if not values["served"]:
        raise ValueError("served is empty; give the name under which the endpoint serves the model")
    if values["logs"]:
        raise ValueError("both logs and an endpoint are given; give one")
    if values["temperature"] < 0:
        raise ValueError("temperature is below 0; give the one at which the endpoint shall answer, 0 for greedy "
                         "decoding")
    prompts.check(values["prompts"], chat=True)


def _inputs(name: str, values: Mapping) -> None:
    if values[name] and not Path(values[name]).expanduser().is_file():
        raise FileNotFoundError(f"no file at {values[name]}; give the batch's input file, or leave inputs out")


def _drafters(name: str, values: Mapping) -> None:
    """Kinds that read the text alone; other names are models, which are checked with the target."""
    from lib.models.load import check_served
    from lib.studies.served.measure import kinds_of

    check_served(values["target"], kinds_of(values[name])[1])


def _costs(name: str, values: Mapping) -> None:
    """A table of costs, or hardware by its name."""
    from lib.cost.roofline import HARDWARE
    from lib.cost.served import read_costs

    if values[name] not in HARDWARE:
        read_costs(values[name])


NOTEBOOK = "08_served"
PARAMETERS = {"logs": _log, "endpoint": _endpoint, "inputs": _inputs, "drafters": _drafters, "costs": _costs,
              "dtype": dtype, "most_nodes": nodes, "most_depth": above_zero}

TABLES = (
    table("served_candidates", "predicted speed of one drafter and tree at one batch, replayed on all logged answers",
          "batch drafter shape", """
          batch drafter shape budget depth
          chain flag whether the shape is one path of favourites
          tokens interval tokens per round and sequence, bonus token included, on all logged answers
          speedup n_prompts n_rounds
          """, compressed=True),
    table("served_text", "what replay finds of one drafter where answers are known by ids, and by their text alone",
          "drafter", """
          drafter
          answers integer logged answers whose token ids are known
          canonical integer of them those whose ids are what the tokenizer makes of their text
          tokens_ids real tokens per round of chain:4, with the ids that were written
          tokens_text real tokens per round of chain:4, with the tokens that the tokenizer makes of the text
          example flag whether these are the example's answers, since none of the log's has ids
          """),
)
