"""OpenVINO GenAI with one setting, whose pipeline is stepped here, so that each round is seen, on token ids."""

import time
from collections import Counter

import numpy as np
import openvino
import openvino_genai as genai
from channel import serve

OUTWEIGHED = 1e9  # a penalty that lets no token come again
running = {}  # the pipeline and how it drafts, once it has started


def start(model, method, drafter, options, properties, batch, batched_tokens):
    """Makes the pipeline; keys and values of earlier prompts are not kept."""
    scheduler = genai.SchedulerConfig()
    scheduler.enable_prefix_caching, scheduler.max_num_seqs = False, batch
    scheduler.max_num_batched_tokens = batched_tokens  # a prompt is read in one step
    drafting = {"prompt_lookup": True} if method in ("forced", "prompt_lookup") else {}
    if drafter:
        drafting["draft_model"] = genai.draft_model(drafter, "CPU", **properties)
    running["pipeline"] = genai.ContinuousBatchingPipeline(model, scheduler, "CPU", {**properties, **drafting})
    running.update(method=method, options=options, fits=bool(drafter) and "tree_depth" not in options)


def configuration(new_tokens, ends, drafted):
    """Of a request.

    Look-up fills its drafts up with token -1, which is never accepted. Where it may not repeat a token, it finds no
    match: drafts are all of these then, and cost nothing besides the check.
    """
    settings = genai.GenerationConfig(**running["options"])
    settings.max_new_tokens, settings.apply_chat_template, settings.ignore_eos = new_tokens, False, not ends
    if ends:
        settings.eos_token_id, settings.stop_token_ids = ends[0], set(ends)
    if drafted is not None:
        settings.num_assistant_tokens = drafted
    if running["method"] == "forced":
        settings.repetition_penalty = OUTWEIGHED
    return settings


def decode(prompts, new_tokens, ends, drafted):
    """What `driver.Decoded` has, of prompts that are decoded together.

    The engine's own counters leave out the last round of a request. So rounds are counted by the tokens that they
    give: look-up and trees have all their draft tokens as long as one fits before the answer's last, the chain of a
    draft model or head as many as fit.
    """
    pipeline, texts, prefill = running["pipeline"], [[] for _ in prompts], None
    settings, counted = configuration(new_tokens, ends, drafted), Counter(drafts=0, drafted=0, accepted=0)
    tokens = settings.num_assistant_tokens or 0
    began = time.perf_counter()
    handles = [pipeline.add_request(number, openvino.Tensor(np.array([prompt], dtype=np.int64)), settings)
               for number, prompt in enumerate(prompts)]
    while pipeline.has_non_finished_requests():
        pipeline.step()
        for handle, text in zip(handles, texts):
            new = []
            while handle.can_read():
                new += [token for output in handle.read().values() for token in output.generated_ids]
            if text and new:
                room = new_tokens - len(text) - 1
                counted.update(drafts=room > 0, accepted=len(new) - 1,
                               drafted=min(tokens, room) if running["fits"] else tokens * (room > 0))
            text += new
        if prefill is None and all(texts):
            prefill = time.perf_counter() - began
    reply = {"tokens": texts, "seconds": time.perf_counter() - began, "prefill": prefill}
    if not all(texts):
        raise RuntimeError(f"{texts.count([])} of {len(texts)} prompts got no token; give shorter prompts or fewer")
    return reply if running["method"] == "plain" else reply | counted


if __name__ == "__main__":
    serve({"start": start, "decode": decode})
