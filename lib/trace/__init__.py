"""Traces: the target's own continuation of prompts, with what each drafter thought at each position; recorded once."""

from lib.trace.ahead import ReadsAhead
from lib.trace.data import Trace, join
from lib.trace.loops import loop_start
from lib.trace.reading import rank_of, read
from lib.trace.recording import record
from lib.trace.storage import load, save

__all__ = ["ReadsAhead", "Trace", "join", "load", "loop_start", "rank_of", "read", "record", "save"]
