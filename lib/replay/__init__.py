"""Replay: what any tree would have accepted on recorded text.

Start at `recording` (`record` makes a `Trace`) and `exact` (`accepted_lengths`, `rounds`). `logs` makes a trace of
logged answers, which `log_lines` reads, `messages` as a chat template takes them, and `endpoint` asks a served model
for. `rank_paths` is the trie on which exact replay works, with the best tree of a trace. `simulated` drafts again, for
drafters that read the text alone and for trees that grow. `expectation` gives the expected acceptance of rules that
sample their children, `acceptance` the tables of many trees, `live` decodes what replay does not decide.
"""

from lib import lazy_exports

__getattr__, __all__ = lazy_exports(
    __name__,
    exact=("Walk", "accepted_lengths", "chain_of", "chained", "rounds", "walk"),
    recording=("read", "record"),
    trace=("Trace", "join", "load", "loop_start", "save"),
)
