"""transformers' `generate` with one setting, on token ids."""

import time
from types import SimpleNamespace

import torch
from channel import serve
from torch.nn.utils.rnn import pad_sequence
from transformers import AutoModelForCausalLM
from transformers.generation.candidate_generator import CandidateGenerator

NEVER = 0  # the token that forced drafts consist of; the target may not choose it then
running = {}  # the model and how it drafts, once it has started


class Counted(CandidateGenerator):
    """Drafts as another generator, or as many NEVER as are forced; notes each round's draft and accepted tokens."""

    def __init__(self, generator):
        self.generator = generator

    def get_candidates(self, input_ids, **context):
        """The text with its draft, and scores if there are any."""
        if running["method"] != "forced":
            return self.generator.get_candidates(input_ids, **context)
        return torch.cat([input_ids, input_ids.new_full((1, running["drafted"]), NEVER)], dim=1), None

    def update_candidate_strategy(self, input_ids, scores, num_matches):
        """Tells of a check, whose scores are those of the draft tokens and one more."""
        running["rounds"].append((scores.shape[1] - 1, num_matches))
        self.generator.update_candidate_strategy(input_ids, scores, num_matches)


def without_never(output_layer, inputs, logits):
    """A hook: NEVER is not chosen. (A processor of scores would run once for each draft token, in forced rounds alone.)
    """
    logits[..., NEVER] = -torch.inf


def start(model, method, tokens, drafter, options, dtype, threads):
    """Loads target and assistant."""
    torch.set_num_threads(threads)
    target, *assistants = (AutoModelForCausalLM.from_pretrained(folder, dtype=dtype) for folder in (model, drafter)
                           if folder)
    target.generation_config.eos_token_id = None  # each call tells its own
    choose = target._get_candidate_generator
    target._get_candidate_generator = lambda **context: Counted(choose(**context))
    if method == "forced":
        target.get_output_embeddings().register_forward_hook(without_never)
    for assistant in assistants:
        assistant.generation_config.update(num_assistant_tokens=tokens, num_assistant_tokens_schedule="constant",
                                           assistant_confidence_threshold=0.0)
        options = {**options, "assistant_model": assistant}
    running.update(target=target, method=method, options=options)


@torch.inference_mode()
def decode(prompts, new_tokens, ends, drafted):
    """What `driver.Decoded` has, of prompts that are decoded together."""
    texts, mask = (pad_sequence([make(torch.tensor(prompt)) for prompt in prompts], True, NEVER, "left")
                   for make in (torch.clone, torch.ones_like))
    rounds, times = [], []  # of the prompts and of the tokens of each forward pass
    clock = SimpleNamespace(put=lambda tokens: times.append(time.perf_counter()), end=lambda: None)
    running.update(rounds=rounds, drafted=drafted)
    began = time.perf_counter()
    written = running["target"].generate(
        texts, attention_mask=mask, max_new_tokens=new_tokens, do_sample=False, eos_token_id=ends or None,
        pad_token_id=NEVER, streamer=clock, **running["options"])
    reply = {"seconds": time.perf_counter() - began, "prefill": times[1] - began,
             "tokens": [row[: next((index + 1 for index, token in enumerate(row) if token in ends), None)]
                        for row in written[:, texts.shape[1] :].tolist()]}
    if running["method"] == "plain":
        return reply
    drafts, accepted = zip(*rounds)
    return {**reply, "drafts": sum(map(bool, drafts)), "drafted": sum(drafts), "accepted": sum(accepted)}


if __name__ == "__main__":
    serve({"start": start, "decode": decode})
