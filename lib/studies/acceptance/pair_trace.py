"""A trace of a pair on prompts, as studies record it."""

from typing import Mapping

from lib import replay
from lib.replay.trace import Trace


def record(pair, asked, drafters: Mapping[str, object] | None = None, **settings) -> Trace:
    """`trace.record` of a `models.Pair` on prompts (see `recording.Prompts`) up to its own EOS.

    drafters: by name, the pair's own model alone if not given; settings: as `trace.record` takes them.
    """
    return replay.record(pair.target, drafters or {pair.drafter_name: pair.draft_model}, asked.ids, names=asked.names,
                        kinds=asked.kinds, eos_token_id=pair.eos_token_ids, **settings)
