"""Answers of a model behind an OpenAI-compatible server, collected as a log that `logs` reads (package `openai`).

An answer is kept as soon as it is there, so that a stopped collection resumes. The key is in no file.
"""

import json
import os
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from contextlib import suppress
from pathlib import Path

from lib.lab import atomic_file, environment, provenance
from lib.models import dialogue

KEY = "OPENAI_API_KEY"  # in the environment; servers that need none get a stand-in
AT_ONCE, RETRIES, SECONDS = 8, 6, 600.0  # requests; of one that was refused for now; for an answer
OPENAI = {"tools", "reasoning_effort"}  # fields for the template that the package knows; other servers know more
LONGEST = 200  # characters of a server's error that are shown


def request_of(model: str, prompt: Sequence[Mapping[str, str]] | str, *, new_tokens: int, temperature: float,
               seed: int) -> dict[str, object]:
    """The body of a request: of a chat completion for messages, of a completion for a plain text."""
    body = {"prompt": prompt} if isinstance(prompt, str) else {"messages": list(prompt)}
    return {"model": model, **body, "max_tokens": new_tokens, "temperature": temperature, "seed": seed}


def collect(url: str, requests: Mapping[str, Mapping[str, object]], kinds: Mapping[str, str], folder: Path) -> Path:
    """Sends the requests, by name, that have no answer yet, and returns the file of all answers. ValueError where the
    server gives none; earlier answers are kept.
    """
    try:
        import openai
    except ImportError:
        raise ValueError("the package openai, which asks the server, is not installed; to add it: "
                         f"{environment.install_command('served')}") from None
    client = openai.OpenAI(base_url=url, api_key=os.environ.get(KEY) or "none", max_retries=RETRIES, timeout=SECONDS)
    path, answered = folder / f"answers-{provenance.digest([url, dict(requests)])[:12]}.jsonl", {}
    folder.mkdir(parents=True, exist_ok=True)
    for line in path.read_bytes().splitlines(keepends=True) if path.exists() else ():
        with suppress(ValueError, KeyError, TypeError):  # a line that a stop cut off is removed
            answered[json.loads(line)["id"]] = line
    atomic_file.replace(path, b"".join(answered.values()))
    print(f"{len(answered)} of {len(requests)} answers are there; asking {url} for the others")
    with open(path, "ab", buffering=0) as file, ThreadPoolExecutor(AT_ONCE) as pool:
        waiting = {pool.submit(_answer, client, url, request): name for name, request in requests.items()
                   if name not in answered}
        try:
            for done in as_completed(waiting):
                name = waiting[done]
                line = {"id": name, "category": kinds[name], "request": requests[name], "response": done.result()}
                file.write(json.dumps(line, ensure_ascii=False).encode() + b"\n")  # a whole line in one call
        finally:
            pool.shutdown(wait=False, cancel_futures=True)
    return path


def _answer(client, url: str, request: Mapping[str, object]) -> dict[str, object]:
    """The body of the server's response; with token ids where it gives them."""
    import openai

    ask = client.chat.completions.create if "messages" in request else client.completions.create
    more = {name: request[name] for name in request.keys() & dialogue.OPTIONS.keys() - OPENAI}
    usual = {name: value for name, value in request.items() if name not in more}
    try:
        try:
            response = ask(**usual, extra_body=more | {"return_token_ids": True})
        except (openai.BadRequestError, openai.UnprocessableEntityError):  # a server that knows no such field
            response = ask(**usual, extra_body=more)
        return response.model_dump(exclude_none=True)
    except (openai.OpenAIError, ValueError, AttributeError) as error:  # the last two where the answer has no JSON
        reason = " ".join(f"{type(error).__name__}: {error}".split())[:LONGEST]
        raise ValueError(f"the server at {url} gave no answer of {request['model']!r} ({reason}); give the url up to "
                         f"/v1, the name that it serves, and {KEY} if it needs a key; then run again") from None
