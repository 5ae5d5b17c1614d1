"""Logged texts as a backend that decodes nothing here: a log is a trace, and its costs come from elsewhere."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from types import SimpleNamespace

import numpy as np

from lib.engines.driver import Running
from lib.engines.methods import Way
from lib.models.load import ServedModel
from lib.replay import recording
from lib.replay.logs import LoggedTexts
from lib.replay.trace import Trace, loops


@dataclass(frozen=True)
class Log:
    """The model that wrote logged texts, with the interface of `driver.Engine`.

    name: "log", or the name under which the model is served. target: with its tokenizer, and the draft models that run
    here. temperature: at which the texts were written.
    """

    name: str
    texts: LoggedTexts
    target: ServedModel
    temperature: float
    batches, idles, padded, at_once, chains = True, False, False, 1, False

    @property
    def pair(self) -> SimpleNamespace:
        """What drafters and settings need of a `models.load.Pair`; the target's weights are not here."""
        target = SimpleNamespace(config=self.target.config, name_or_path=self.target.name)
        draft_model = next(iter(self.target.drafters.values()), None)
        return SimpleNamespace(target=target, target_name=self.target.name, draft_model=draft_model,
                               eos_token_ids=self.target.eos_token_ids)

    def start(self, way: Way, *, window: int, batch: int, log: Path) -> Running:
        """RuntimeError: nothing is decoded here."""
        raise RuntimeError(f"the texts of {self.name} were written elsewhere; lib/engines/measure_served.py writes a "
                           "file of costs where the model is served")

    def line(self, way: Way) -> str:
        """Nothing, since the engine that serves the model is not known; see `registry.lines`."""
        return ""

    def trace(self, drafters: Mapping[str, object], longest: int) -> Trace:
        """The texts with the ranks of draft models. Rounds start where the text decides a tree of so many levels, so
        that all trees have the same starts; where EOS ended a text, everywhere.
        """
        trace = recording.read(None, drafters, self.texts, temperature=self.temperature)
        lengths = np.where(trace.ended, trace.lengths, np.maximum(0, trace.ends - longest))
        return replace(trace, lengths=lengths, labels={**trace.labels, "temperature": self.temperature})

    def rows(self) -> list[dict[str, object]]:
        """Rows of the table "texts" without their source; remarks tell how tokens are known, or a refusal."""
        texts = zip(self.texts.names, self.texts.written, self.texts.known_by)
        answers = [dict(prompt=name, tokens=len(ids), loops=loops(ids), ids=" ".join(map(str, ids)), remark=known_by)
                   for name, ids, known_by in texts]
        return answers + [
            dict(prompt=line, tokens=0, loops=False, ids="", remark=f"refused: {' '.join(reason.split())}")
            for line, reason in self.texts.refused.items()]
