"""Replay: what any tree would have accepted on recorded text.

Start at `recording` (`record` makes a `Trace`) and `exact` (`accepted_lengths`, `rounds`), which works on the trie in
`rank_paths`. `simulated` drafts again, for drafters that read the text alone and for trees that grow. `expectation` is
for rules that sample their children, `acceptance` has the tables. `logs` makes a trace of logged answers, whose forms
`log_lines` reads and for which `endpoint` asks a served model. `atlas` publishes traces as data.
"""

from lib.replay.exact import accepted_lengths, chained, rounds
from lib.replay.recording import Texts, read, record
from lib.replay.trace import Trace, join, load, loops, save

__all__ = ["Texts", "Trace", "accepted_lengths", "chained", "join", "load", "loops", "read", "record", "rounds",
           "save"]
