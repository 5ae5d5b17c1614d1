"""Answers of a model behind an OpenAI-compatible server, collected as the lines of a log that `log_lines` reads.

An answer is kept as soon as it is there, so that a stopped collection resumes. The key is read from the environment by
the client and is in no file. Needs the package `openai`.
"""

import json
import os
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from contextlib import suppress
from pathlib import Path

from lib.lab import atomic_file, json_text, provenance

KEY = "OPENAI_API_KEY"  # in the environment; servers that ask for none get a stand-in
AT_ONCE = 8  # requests
RETRIES = 6  # of a request that timed out or was refused for now, after waits that double
SECONDS = 600.0  # for an answer
LONGEST = 200  # characters of what a server says of an error
WITH_IDS = {"return_token_ids": True}  # how vLLM is asked for token ids


def request_of(served: str, asked: Sequence[Mapping[str, str]] | str, *, new_tokens: int, temperature: float,
               seed: int) -> dict[str, object]:
    """The body of a request: of a chat completion for messages, of a completion for a plain text."""
    what = {"prompt": asked} if isinstance(asked, str) else {"messages": list(asked)}
    return {"model": served, **what, "max_tokens": new_tokens, "temperature": temperature, "seed": seed}


def collect(url: str, requests: Mapping[str, Mapping[str, object]], kinds: Mapping[str, str], folder: Path, *,
            report: Callable[[str], None] = print, at_once: int = AT_ONCE, retries: int = RETRIES,
            seconds: float = SECONDS) -> Path:
    """Sends the requests, by name, that have no answer yet, and returns the file of all answers.

    The file's name holds a digest of url and requests, so that answers to others are not taken for these. ValueError
    says what the server refused, and for which request; what was answered before is kept.
    """
    path, answered = folder / f"answers-{provenance.digest([url, dict(requests)])[:12]}.jsonl", {}
    path.parent.mkdir(parents=True, exist_ok=True)
    for line in path.read_bytes().splitlines(keepends=True) if path.exists() else ():
        with suppress(ValueError, KeyError, TypeError):  # a line that a stop cut off is removed
            answered[json_text.loads(line)["id"]] = line
    atomic_file.replace(path, b"".join(answered.values()))
    missing = [name for name in requests if name not in answered]
    report(f"{len(answered)} of {len(requests)} answers are there; asking {url} for {len(missing)}")
    if not missing:
        return path
    try:
        from openai import OpenAI
    except ImportError:
        raise ValueError("the package openai, which talks to servers, is not installed; install the one that "
                         "requirements.txt names after `served:`") from None
    client = OpenAI(base_url=url, api_key=os.environ.get(KEY) or "none", max_retries=retries, timeout=seconds)
    with open(path, "ab", buffering=0) as file, ThreadPoolExecutor(at_once) as pool:
        waiting = {pool.submit(_answer, client, url, requests[name]): name for name in missing}
        try:
            for count, done in enumerate(as_completed(waiting), len(answered) + 1):
                name = waiting[done]
                line = {"id": name, "category": kinds[name], "request": requests[name], "response": done.result()}
                file.write(json.dumps(line, ensure_ascii=False).encode() + b"\n")  # a whole line in one call
                if count % at_once == 0 or count == len(requests):
                    report(f"{count} of {len(requests)} answers")
        except BaseException:
            pool.shutdown(wait=False, cancel_futures=True)
            raise
    return path


def _answer(client, url: str, request: Mapping[str, object]) -> dict[str, object]:
    """The body of the server's response; with token ids where it gives them."""
    import openai

    def told(text: object) -> str:
        return " ".join(str(text).split())[:LONGEST]

    ask = client.chat.completions.create if "messages" in request else client.completions.create
    try:
        try:
            done = ask(**request, extra_body=WITH_IDS)
        except (openai.BadRequestError, openai.UnprocessableEntityError):  # a server that knows no such field
            done = ask(**request)
        return done.model_dump(exclude_none=True)
    except openai.AuthenticationError:
        raise ValueError(f"the server at {url} refused the key; set {KEY} to one that it takes") from None
    except openai.NotFoundError:
        raise ValueError(f"the server at {url} has no model {request['model']!r}, or no such path; give the name that "
                         "it serves, and the url up to /v1") from None
    except openai.APIConnectionError as error:
        raise ValueError(f"no answer from {url} ({type(error).__name__}); start the server, or give its url up to /v1; "
                         "the same command goes on from there") from None
    except openai.APIStatusError as error:
        raise ValueError(f"the server at {url} refused a request with status {error.status_code} "
                         f"({told(error.message)}); the same command goes on from there") from None
    except (openai.APIError, ValueError, AttributeError) as error:  # no JSON, or not the answer's form
        raise ValueError(f"the server at {url} gave no readable answer ({told(error)}); give the url of an "
                         "OpenAI-compatible server, up to /v1") from None
