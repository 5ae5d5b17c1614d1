"""The quality of a number format beside transformers' own attention over whole texts."""

from dataclasses import replace
from types import SimpleNamespace

import pytest
import torch
import torch.nn.functional as F

from lib.attention.registration import using_attention
from lib.decoding import loop
from lib.engines.own import Own
from lib.forward.packed import quantize_int8
from lib.lab.chapter import Store
from lib.lab.tables import read
from lib.models import load as models
from lib.replay.simulated import Recorded
from lib.study import quality
from lib.study.bench import JUDGING, Bench

STARTS = ("def area(width, height):\n", "class Tree:\n    def __init__(self, parents):\n", "import os\n\n\ndef read(",
          "for row in rows:\n    total", "if __name__ == ", "def test_sorted():\n    assert ", "x = [", "try:\n    w")


def teacher_forced(pair, prompt, tokens):
    """float64[N, V] log-probabilities of the whole text at once, of the tokens after the first one."""
    with using_attention(pair.target, "sdpa"), torch.inference_mode():
        logits = pair.target(torch.cat([prompt, tokens])[None]).logits[0, len(prompt) : -1]
    return logits.double().log_softmax(-1)


@pytest.mark.parametrize(("name", "close"), [("bfloat16", 0.5), ("int8", 0.15)])
def test_quality_is_that_of_a_plain_teacher_forced_pass(name, close, tmp_path):
    widest = models.load_pair("small", dtype="float32")
    other = models.load_pair("small", dtype="float32" if name == "int8" else name)
    if name == "int8":  # int8 weights alone: activations stay as wide as those it is compared with
        quantize_int8(other.target)
    prompts = [widest.tokenizer(text, return_tensors="pt")["input_ids"][0] for text in STARTS]
    answers = [torch.tensor(tokens) for tokens in loop.continuations(widest.target, prompts, max_new_tokens=16)]
    recorded = Recorded(SimpleNamespace(tokens=torch.stack(answers).numpy()), prompts)
    bench = Bench(Own(other, prompts), Store(tmp_path, "05", "mark"), "small", None, [JUDGING] * 8, 16, {}, 1, ())
    reference = quality.log_probabilities(replace(bench, backend=Own(widest, prompts)), recorded)
    for _ in range(2):  # the second finds its rows
        quality.measure(bench, recorded, reference)
    found = read(tmp_path, "05_quality").set_index("quantity")
    passes = [[teacher_forced(pair, *text) for text in zip(prompts, answers)] for pair in (widest, other)]
    reference, logs = map(torch.cat, passes)
    assert torch.equal(reference.argmax(-1), torch.cat([answer[1:] for answer in answers])), "the widest format wrote its own greedy text"
    equal = float((reference.argmax(-1) == logs.argmax(-1)).double().mean())
    divergence = float(F.kl_div(logs, reference, log_target=True, reduction="batchmean"))
    assert set(found["n"]) == {len(prompts)} and (found["low"] <= found["value"]).all()
    assert found["value"]["equal favourites"] == pytest.approx(equal, abs=3 / len(reference))
    assert found["value"]["KL per token"] == pytest.approx(divergence, rel=close, abs=1e-7)
