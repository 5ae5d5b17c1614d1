"""The tree designer: a draft tree that a person changes, and after each change what it is worth on recorded text.

`designer.js` replays a tree in the browser, on a page without network and in JupyterLab alike; here are its data. The
choosing prompts give the hints and grow the best trees, the others judge.
"""

import base64
import json
import zlib
from collections.abc import Mapping, Sequence
from pathlib import Path

import anywidget
import numpy as np
import pandas as pd
import traitlets

from lib.engines import registry
from lib.engines.methods import FORCED, PLAIN
from lib.lab import stats, units
from lib.replay.atlas import Atlas
from lib.replay.rank_paths import MOST_RANK, most_frequent_paths, rank_paths
from lib.replay.trace import Trace
from lib.trees.tree import ROOT

LEVELS, PATHS, END = 10, 128, 255  # of recorded ranks; paths of the choosing prompts; the rank after a text's end
SCRIPT, STYLE, PARTS = (Path(__file__).with_name(f"designer.{kind}") for kind in ("js", "css", "html"))
DRAFTERS = "ngrams", "model", "model:vocabulary=8192", "eagle3", "dflash"
DATA = "designer-data"  # the id of a page's element with the data


class Designer(anywidget.AnyWidget):
    """The designer as a widget; data: as of `data_of`."""

    _esm, _css = SCRIPT, STYLE
    data = traitlets.Dict().tag(sync=True)


def data_of(atlas: Atlas, costs: pd.DataFrame, drafters: Sequence[str] = DRAFTERS) -> dict[str, object]:
    """What the script reads, as JSON has it, for those of the drafters whose ranks are recorded. costs: rows of tables
    "costs" with their machine, of which the script starts with the first.

    Texts are those that judge and do not loop (see `Trace`). Of drafters, `ranks` are zlib and base64 of uint8, per
    transition, or per level ahead where `windows`; `paths` have counts among `starts` on the texts that choose; of
    chains `drafting` has milliseconds per round and level, by costs and batch size; `lines` are by engine and length.
    """
    trace, chooses = atlas.trace, np.isin(np.array(atlas.trace.prompts), atlas.trace.labels["choosing"])
    choosing, judging = (trace.select(part & ~trace.looping) for part in (chooses, ~chooses))
    numbers, names_of_units = pd.factorize(pd.Series(judging.prompts).map(units.unit))
    costs = costs.assign(name=costs["machine"] + ", " + costs["backend"])
    checks = costs.loc[costs["method"].isin([PLAIN, FORCED]), ["name", "batch", "method", "nodes", "ms"]]
    texts = {"lengths": judging.lengths.tolist(), "ends": judging.ends.tolist(), "ended": judging.ended.tolist(),
             "kinds": list(judging.kinds), "turns": [*map(units.turn, judging.prompts)], "units": numbers.tolist(),
             "width": judging.tokens.shape[1] - 1, "tail": stats.tail(max(2, len(names_of_units))),
             "target": str(trace.labels["target"])}
    return {"parts": PARTS.read_text(encoding="utf-8"), "texts": texts, "costs": checks.round(4).to_numpy().tolist(),
            "drafters": {name: _drafter(choosing, judging, name) | _of_engines(costs, name)
                         for drafter in drafters for name in trace.ranks if name.partition(" (")[0] == drafter}}


def _drafter(choosing: Trace, judging: Trace, name: str) -> dict[str, object]:
    ranks, windows = judging.ranks[name], judging.ranks[name].ndim == 3
    ranks = ranks[:, :, :LEVELS] if windows else ranks
    levels = ranks.shape[2] if windows else LEVELS
    packed = np.where(ranks < 0, END, np.minimum(ranks, MOST_RANK)).astype(np.uint8)
    paths = most_frequent_paths(choosing, PATHS, name, most_depth=levels)
    return {"levels": levels, "windows": windows, "starts": rank_paths(choosing, name).count(ROOT),
            "ranks": base64.b64encode(zlib.compress(packed.tobytes(), 9)).decode(),
            "paths": [[".".join(map(str, path)), int(count)] for path, count in paths]}


def _of_engines(costs: pd.DataFrame, drafter: str) -> dict[str, object]:
    lines, drafting = {}, {}
    for tokens in range(1, LEVELS + 1):
        for row in registry.lines(None, drafter, tokens, {}):
            if row["draft"] == registry.CHAIN:
                lines.setdefault(row["engine"], []).append(row["setting"])
    of_engines = {(engine.name, method.name) for engine in registry.ENGINES.values() for method in engine.methods
                  if method.spec == drafter}
    keys = zip(costs["backend"].str.partition(":")[0], costs["method"])
    is_drafting = np.array([key in of_engines or key[1] == drafter for key in keys])
    chains = costs[is_drafting & costs["shape"].str.startswith("chain:")]
    for (name, batch), rows in chains.groupby(["name", "batch"], sort=False):
        level, fixed = np.polyfit(rows["nodes"], rows["ms"], 1).clip(0).round(3).tolist()
        drafting.setdefault(name, {})[batch] = [fixed, level]
    return {"drafting": drafting, "lines": [*lines.items()]}


def section(data: Mapping[str, object]) -> str:
    """The designer as a part of a page, which `lab.execute.pages` gives its script."""
    written = json.dumps(data, separators=(",", ":")).replace("</", "<\\/")
    return (f'<style>{STYLE.read_text(encoding="utf-8")}</style><div class="designer" data-from="{DATA}"></div>'
            f'<script type="application/json" id="{DATA}">{written}</script>')
