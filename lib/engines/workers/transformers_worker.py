"""transformers' `generate` with one setting; prompts and answers are token ids."""

import time

import torch
from channel import serve
from transformers import AutoModelForCausalLM
from transformers.generation.candidate_generator import CandidateGenerator
from transformers.generation.streamers import BaseStreamer

NEVER = 0  # the token that forced drafts consist of; the target may not choose it then
running = {}  # the model and how it drafts, once it has started


class Clock(BaseStreamer):
    """When the prompts came, and the tokens of each forward pass."""

    def __init__(self):
        self.times = []

    def put(self, value):
        """Notes the time."""
        self.times.append(time.perf_counter())

    def end(self):
        """Nothing is held back."""


class Forced(CandidateGenerator):
    """Drafts so many tokens, of which none is accepted."""

    def __init__(self, tokens):
        self.tokens = tokens

    def get_candidates(self, input_ids, **context):
        """The text with its draft, and no scores."""
        return torch.cat([input_ids, input_ids.new_full((1, self.tokens), NEVER)], dim=1), None


def without_never(input_ids, scores):
    """A processor of scores: NEVER is not chosen."""
    scores[:, NEVER] = -torch.inf
    return scores


def start(model, method, tokens, drafter, options, dtype, threads):
    """Loads target and assistant."""
    torch.set_num_threads(threads)
    loaded = [AutoModelForCausalLM.from_pretrained(place, dtype=dtype).eval() for place in (model, drafter) if place]
    loaded[0].generation_config.eos_token_id = None  # each call tells its own
    running.update(zip(("model", "assistant"), loaded), method=method, options=options, tokens=tokens)
    choose = loaded[0]._get_candidate_generator
    loaded[0]._get_candidate_generator = lambda **context: counted(choose(**context))


def counted(generator):
    """A candidate generator, in whose place the forced one may be, that notes of each round the draft and accepted
    tokens.
    """
    if running["method"] == "forced":
        generator = Forced(running["forced"])
    learn = generator.update_candidate_strategy

    def update_candidate_strategy(input_ids, scores, num_matches):
        running["rounds"].append((scores.shape[1] - 1, num_matches))
        learn(input_ids, scores, num_matches)

    generator.update_candidate_strategy = update_candidate_strategy
    return generator


def drafting(tokens):
    """The keywords of `generate` that set how it drafts."""
    if running["method"] == "plain":
        return {}
    if "assistant" not in running:
        return {"prompt_lookup_num_tokens": tokens}
    running["assistant"].generation_config.update(num_assistant_tokens=tokens, num_assistant_tokens_schedule="constant",
                                                  assistant_confidence_threshold=0.0)
    return {"assistant_model": running["assistant"]}


@torch.inference_mode()
def decode(prompts, new_tokens, ends, drafted):
    """What `driver.Decoded` has, of prompts that are decoded together."""
    longest, clock = max(map(len, prompts)), Clock()
    texts = torch.tensor([[NEVER] * (longest - len(prompt)) + prompt for prompt in prompts])
    mask = torch.tensor([[0] * (longest - len(prompt)) + [1] * len(prompt) for prompt in prompts])
    tokens = running["tokens"] if drafted is None else drafted
    running.update(rounds=[], forced=tokens)
    forced = {"logits_processor": [without_never]} if running["method"] == "forced" else {}
    began = time.perf_counter()
    written = running["model"].generate(
        texts, attention_mask=mask, max_new_tokens=new_tokens, do_sample=False, eos_token_id=ends or None,
        pad_token_id=NEVER, streamer=clock, **running["options"], **drafting(tokens), **forced)
    seconds = time.perf_counter() - began
    reply = {"tokens": [until(row, ends) for row in written[:, longest:].tolist()], "seconds": seconds,
             "prefill": clock.times[1] - began}
    if running["method"] == "plain":
        return reply
    rounds = [(drafted, matches) for drafted, matches in running["rounds"] if drafted]
    return {**reply, "drafts": len(rounds), "drafted": sum(drafted for drafted, _ in rounds),
            "accepted": [sum(matches > place for _, matches in rounds) for place in range(tokens)]}


def until(text, ends):
    """A text up to the first of these tokens, which it keeps."""
    return text[: next((place + 1 for place, token in enumerate(text) if token in ends), None)]


if __name__ == "__main__":
    serve({"start": start, "decode": decode})
