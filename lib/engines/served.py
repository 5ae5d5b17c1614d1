"""A server of the user's own, driven through the OpenAI interface: it decodes as it was started, and is not stopped.

Counts come from where the server has them: vLLM's metrics of a request, the counters of the page /metrics of vLLM or
llama.cpp, which are right while nobody else asks the server, or else llama.cpp's timings of an answer.
"""

import json
import os
import re
import time
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from urllib.error import HTTPError, URLError
from urllib.request import Request, urlopen

from lib.drafters.drafter import UNKNOWN
from lib.engines.driver import Decoded, EngineError, Running
from lib.replay.endpoint import KEY, LONGEST

SECONDS = 600.0  # without a part of an answer
COUNTER = re.compile(r"^(vllm|llamacpp):spec_decode_num_(?P<what>\w+?)_total(\{(?P<labels>[^}]*)\})? (?P<value>\S+)$",
                     re.MULTILINE)
WANTED = {"temperature": 0, "stream": True, "stream_options": {"include_usage": True}, "return_token_ids": True,
          "return_tokens": True, "cache_prompt": False}  # servers leave out what they do not know


class Server(Running):
    """url: up to /v1; model: the name under which the server has the target. The key is read from the environment."""

    def __init__(self, url: str, model: str):
        self.url, self.model = url.rstrip("/"), model

    def decode(self, prompts: Sequence[Sequence[int]], new_tokens: int, ends: Sequence[int] = (),
               drafted: int | None = None) -> Decoded:
        """As `Running.decode`, all prompts asked at the same time; the server's own ends of text count, or none where
        `ends` is empty. EngineError names what the server refused; ValueError for forced drafts.
        """
        if drafted is not None:
            raise ValueError("a server that runs already cannot be made to draft a number of tokens; start the engine "
                             "here (engine=vllm) to measure its costs, or give a table of costs")
        before, began = self._counters(), time.perf_counter()
        with ThreadPoolExecutor(len(prompts)) as pool:
            answers = list(pool.map(lambda prompt: self._answer(list(prompt), new_tokens, not ends), prompts))
        seconds = time.perf_counter() - began
        tokens, firsts, told = zip(*answers)
        change = {name: value - before.get(name, 0) for name, value in self._counters().items()}
        return Decoded(tokens, seconds, max(firsts) - began, *(counts_of(told) or of_counters(change, told)))

    def _answer(self, prompt: list[int], new_tokens: int, ignore: bool) -> tuple[list[int], float, Mapping]:
        """Its token ids, UNKNOWN where the server only counts them, the time at which the first came, and what the
        server tells of the answer.
        """
        body = {"model": self.model, "prompt": prompt, "max_tokens": new_tokens, "ignore_eos": ignore, **WANTED}
        tokens, first, told, count = [], None, {}, 0
        for part in self._stream("/completions", body):
            choice = (part.get("choices") or [{}])[0]
            ids = choice.get("token_ids") or part.get("tokens") or choice.get("tokens") or []
            first = first or (time.perf_counter() if ids or choice.get("text") else None)
            tokens += ids
            count = (part.get("usage") or {}).get("completion_tokens", count)
            told |= {name: part[name] for name in ("metrics", "timings") if part.get(name)}
        if not first or not (tokens or count):
            raise EngineError(f"the server at {self.url} tells neither token ids nor how many tokens it wrote")
        return tokens or [UNKNOWN] * count, first, told

    def _stream(self, path: str, body: Mapping[str, object]) -> Iterator[dict]:
        with self._open(self.url + path, json.dumps(body).encode()) as answer:
            for line in answer:
                text = line.decode("utf-8", "replace").strip().removeprefix("data:").strip()
                if text and text != "[DONE]":
                    yield json.loads(text)

    def _counters(self) -> dict[str, float]:
        """The counters of the server's page of metrics, that by position with its position; none without the page."""
        try:
            with self._open(self.url.removesuffix("/v1") + "/metrics") as page:
                text = page.read().decode()
        except EngineError:
            return {}
        counters: Counter[str] = Counter()
        for found in COUNTER.finditer(text):
            place = re.search(r'position="(\d+)"', found["labels"] or "")
            counters[found["what"] + (f" {place[1]}" if place else "")] += float(found["value"])
        return dict(counters)

    def _open(self, url: str, body: bytes | None = None):
        headers = {"Content-Type": "application/json", "Authorization": f"Bearer {os.environ.get(KEY) or 'none'}"}
        try:
            return urlopen(Request(url, body, headers), timeout=SECONDS)
        except HTTPError as error:
            said = " ".join(error.read().decode("utf-8", "replace").split())[:LONGEST]
            raise EngineError(f"the server at {url} refused with status {error.code} ({said}); give the url up to /v1, "
                              f"the model's name as it serves it, and the key in {KEY}") from None
        except (URLError, OSError) as error:
            raise EngineError(f"no answer from {url} ({getattr(error, 'reason', error)}); start the server, or give "
                              "its url up to /v1") from None

    def __exit__(self, *error) -> None:
        """Leaves the server running."""


def counts_of(answers: Sequence[Mapping]) -> tuple[int, int, list[int]] | None:
    """Drafts, draft tokens and accepted ones by position, of what vLLM tells of each answer, whose histogram counts
    steps by accepted tokens; None where it tells nothing.
    """
    if all("speculative_decoding" in (told.get("metrics") or {}) for told in answers):
        parts = [told["metrics"]["speculative_decoding"] for told in answers]
        longest = max(len(part["acceptance_histogram"]) for part in parts)
        accepted = [sum(sum(part["acceptance_histogram"][place:]) for part in parts) for place in range(1, longest)]
        return sum(part["num_spec_steps"] for part in parts), sum(part["num_draft_tokens"] for part in parts), accepted
    return None


def of_counters(change: Mapping[str, float], answers: Sequence[Mapping]) -> tuple[int, int, list[int]]:
    """The same of what changed in a server's counters; without them the draft tokens of llama.cpp's timings, or -1."""
    if "drafts" not in change:
        drafted = [told["timings"]["draft_n"] for told in answers if "draft_n" in told.get("timings", {})]
        return -1, sum(drafted) if drafted else -1, []
    by_place = {int(name.split()[1]): int(value) for name, value in change.items()
                if name.startswith("accepted_tokens_per_pos ")}
    return int(change["drafts"]), int(change["draft_tokens"]), [by_place[place] for place in sorted(by_place)]
