"""vLLM with one setting, in this process, so that its steps are timed here; prompts and answers are token ids."""

import sys
import time
from itertools import count
from pathlib import Path

import torch
from channel import serve
from vllm import LLM, SamplingParams
from vllm.sampling_params import RequestOutputKind
from vllm.v1.sample import rejection_sampler

COUNTED = "vllm:spec_decode_num_"
sys.path.append(str(Path(__file__).parents[2] / "drafters"))  # where `draft_proposer` finds `text_index`
names = map(str, count())  # of requests, new ones in each call
running = {}  # the engine, once it has started


class Forced:
    """A proposer, as vLLM's method "custom_class" takes it, that repeats the last token `drafted` times.

    None is accepted: the sampler gets -1 in place of each draft token. (vLLM's "synthetic" acceptance, which could be
    0, has no form for processors.)
    """

    drafted = 0

    def __init__(self, config):
        """config: vLLM's."""
        verify = rejection_sampler.rejection_sample
        rejection_sampler.rejection_sample = lambda drafted, *rest, **more: verify(-torch.ones_like(drafted), *rest,
                                                                                   **more)

    def load_model(self, target):
        """Needs no weights."""

    def propose(self, sampled_token_ids, *texts, **places):
        """A list of draft tokens for each request; none for one whose prompt is not read to its end."""
        return [written[-1:] * self.drafted for written in sampled_token_ids]


def start(arguments):
    """Starts the engine with these arguments of `vllm.LLM`."""
    running["engine"] = LLM(**arguments).llm_engine


def decode(prompts, new_tokens, ends, drafted):
    """What `driver.Decoded` has, of prompts that are decoded together."""
    engine, Forced.drafted = running["engine"], drafted
    settings = SamplingParams(temperature=0.0, max_tokens=new_tokens, ignore_eos=True, stop_token_ids=ends,
                              detokenize=False, output_kind=RequestOutputKind.DELTA)
    written, prefill, before = {next(names): [] for _ in prompts}, None, counted(engine)
    began = time.perf_counter()
    try:
        for name, prompt in zip(written, prompts):
            engine.add_request(name, {"prompt_token_ids": prompt}, settings)
        while engine.has_unfinished_requests():
            for output in engine.step():
                written[output.request_id] += output.outputs[0].token_ids
            if prefill is None and all(written.values()):
                prefill = time.perf_counter() - began
        seconds = time.perf_counter() - began
    finally:
        engine.abort_request(list(written))  # what an error left
    reply = {"tokens": list(written.values()), "seconds": seconds, "prefill": prefill}
    return reply | {name: count - before[name] for name, count in counted(engine).items()}


def counted(engine):
    """Since the start: drafts, draft tokens, and accepted ones; nothing of plain decoding."""
    counters = {metric.name.removeprefix(COUNTED): metric for metric in engine.get_metrics()}
    if "drafts" not in counters:
        return {}
    return {"drafts": counters["drafts"].value, "drafted": counters["draft_tokens"].value,
            "accepted": sum(counters["accepted_tokens_per_pos"].values)}


if __name__ == "__main__":
    serve({"start": start, "decode": decode})
