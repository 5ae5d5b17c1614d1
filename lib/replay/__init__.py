"""What any tree would have done on recorded text: traces, exact replay, expectation, and the best tree of a trace.

Start at `recording` (`record` makes a `Trace`) and `exact` (`accepted_lengths`, `rounds`). `rank_paths` is the trie
behind exact replay, `grown` replays trees that grow in every round, `expectation` rules that sample their children,
`acceptance` the acceptance of many trees, `frequent_paths` and `chained_search` the best tree of a trace.
"""

from lib import lazy_exports

__getattr__, __all__ = lazy_exports(
    __name__,
    exact=("Walk", "accepted_lengths", "chain_of", "chained", "child_table", "efficiency", "rounds", "walk"),
    loops=("loop_start",),
    reading=("read",),
    recording=("record",),
    storage=("load", "save"),
    trace=("Trace", "join"),
)
