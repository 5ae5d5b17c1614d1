"""The tree designer: a draft tree under your hands, and after each change what it is worth on recorded text.

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
from scipy.special import ndtr, stdtrit

from lib.engines.methods import FORCED, PLAIN
from lib.lab import stats, units
from lib.replay.atlas import Atlas
from lib.replay.rank_paths import MOST_RANK, most_frequent_paths, rank_paths
from lib.replay.trace import Trace
from lib.trees.tree import ROOT

LEVELS, PATHS, END = 10, 1000, 255  # of recorded ranks; paths of the choosing prompts; the rank after a text's end
SCRIPT, STYLE = (Path(__file__).with_name(f"designer.{kind}") for kind in ("js", "css"))
DRAFTERS = "model", "eagle3", "ngrams", "dflash"
DATA = "designer-data"  # the id of a page's element with the data
Lines = Sequence[tuple[str, str]]  # engines, and what a user sets there, with {tokens}


class Designer(anywidget.AnyWidget):
    """The designer as a widget; data: as of `data_of`."""

    _esm, _css = SCRIPT, STYLE
    data = traitlets.Dict().tag(sync=True)


def data_of(atlas: Atlas, costs: pd.DataFrame, drafters: Sequence[str] = DRAFTERS,
            lines: Mapping[str, Lines] | None = None) -> dict[str, object]:
    """What the script reads, as JSON has it, for those of the drafters whose ranks are recorded.

    texts: of each judged text that does not loop `lengths`, `ends` and `ended` (see `Trace`), `kinds`, `turns` and
    `units`; `width`, the transitions of the longest; `tail`, the share that an interval leaves out at each end.
    drafters: by name `ranks`, of each transition (of `levels` ahead where `windows`), zlib and base64 of uint8; `paths`
    of ranks that were accepted most often from `starts` of the choosing texts, with counts; milliseconds of `drafting`
    a level on the machines of `costs`, and `lines` to copy. costs: [machine, batch, method, nodes, ms].
    """
    trace, chooses = atlas.trace, np.isin(np.array(atlas.trace.prompts), atlas.trace.labels["choosing"])
    choosing, judging = (trace.select(part & ~trace.looping) for part in (chooses, ~chooses))
    numbers, names_of_units = pd.factorize(pd.Series(judging.prompts).map(units.unit))
    checks = costs[costs["method"].isin([PLAIN, FORCED])]
    names = checks["machine"] + ", " + checks["backend"]
    return {
        "texts": {
            "lengths": judging.lengths.tolist(), "ends": judging.ends.tolist(), "ended": judging.ended.tolist(),
            "kinds": list(judging.kinds), "turns": [*map(units.turn, judging.prompts)],
            "units": numbers.tolist(), "width": judging.tokens.shape[1] - 1, "tail": tail(len(names_of_units))},
        "drafters": {name: _drafter(choosing, judging, name, costs) | {"lines": list((lines or {}).get(name, []))}
                     for name in drafters if name in trace.ranks},
        "costs": [list(row) for row in zip(names, checks["batch"].tolist(), checks["method"], checks["nodes"].tolist(),
                                           checks["ms"].round(4).tolist())]}


def _drafter(choosing: Trace, judging: Trace, name: str, costs: pd.DataFrame) -> dict[str, object]:
    ranks, windows = judging.ranks[name], judging.ranks[name].ndim == 3
    ranks = ranks[:, :, :LEVELS] if windows else ranks
    levels = ranks.shape[2] if windows else LEVELS
    packed = np.where(ranks < 0, END, np.minimum(ranks, MOST_RANK)).astype(np.uint8)
    paths = most_frequent_paths(choosing, PATHS, name, most_depth=levels)
    chains = costs[(costs["method"] == name) & (costs["batch"] == 1) & costs["shape"].str.startswith("chain:")]
    per_level = (chains["ms"] / chains["nodes"].clip(lower=1)).median()
    return {"levels": levels, "windows": windows, "starts": rank_paths(choosing, name).count(ROOT),
            "ranks": base64.b64encode(zlib.compress(packed.tobytes(), 9)).decode(),
            "paths": [[".".join(map(str, path)), int(count)] for path, count in paths],
            "drafting": 0.0 if np.isnan(per_level) else round(float(per_level), 3)}


def tail(count: int) -> float:
    """The share of bootstrap draws below an interval of 95 % over so many units, as `stats` has it."""
    if count < 2:
        return 0.0
    return float(ndtr(-stdtrit(count - 1, (1 + stats.LEVEL) / 2) * (count / (count - 1)) ** 0.5))


def section(data: Mapping[str, object]) -> str:
    """The designer as a part of a page, which `lab.execute.pages` gives its script."""
    written = json.dumps(data, separators=(",", ":")).replace("</", "<\\/")
    return (f'<style>{STYLE.read_text(encoding="utf-8")}</style><div class="designer" data-from="{DATA}"></div>'
            f'<script type="application/json" id="{DATA}">{written}</script>')
