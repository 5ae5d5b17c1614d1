"""vLLM: drafters against its own drafts, its configuration, and the driver with a stand-in for its package."""

import sys
from types import SimpleNamespace

import pytest

from lib.drafters.registry import AGAIN
from lib.engines import vllm
from lib.engines.methods import FORCED, PLAIN_WAY, Way
from lib.engines.vllm import CONFIG, NgramDrafter, SuffixDrafter, Vllm, favourite
from lib.trees import shapes

# Text, largest and smallest n, draft tokens, and the draft: of vLLM 0.32. A digit is a token.
NGRAMS = [("12391238123", 3, 1, 4, "9123"), ("1111", 2, 1, 4, "11"), ("12345", 5, 5, 4, ""),
          ("1213141", 2, 1, 4, "2131"), ("1213141", 2, 2, 4, ""), ("123412", 4, 2, 8, "3412"),
          ("51235123612", 2, 1, 3, "351"), ("12", 2, 1, 4, ""), ("712372312", 3, 1, 2, "37")]
# Text, draft tokens, depth of the tree, factor, threshold, and the draft: of arctic-inference 0.3.
SUFFIXES = [("1120212212101212212", 8, 4, 1.0, 0.1, "1"), ("2020222", 2, 24, 2.0, 0.1, "22"),
            ("020202020", 4, 24, 1.0, 0.1, "2020"), ("1111111111111", 8, 24, 2.0, 0.3, "1111111"),
            ("012", 4, 24, 1.0, 0.1, ""), ("0", 4, 24, 1.0, 0.1, "")]
PACKAGE = {  # a stand-in for vLLM: each step gives the numbers 10, 11, ... to each request, two at a time from a draft
    "torch.py": "",
    "vllm/v1/sample/rejection_sampler.py": "",
    "vllm/sampling_params.py": "class RequestOutputKind: DELTA = 'new tokens alone'",
    "vllm/__init__.py": """
from types import SimpleNamespace as Space
SamplingParams = lambda **settings: Space(**settings)
class LLM:
    def __init__(self, model, speculative_config, **more):
        self.llm_engine, self.drafts, self.asked, self.count = self, speculative_config, {}, 0
    def add_request(self, name, prompt, settings):
        if len(prompt["prompt_token_ids"]) > 4:
            raise ValueError("the prompt is too long")
        self.asked[name] = list(range(10, 10 + settings.max_tokens))
        assert settings.ignore_eos and settings.output_kind == "new tokens alone" and settings.temperature == 0
    has_unfinished_requests = lambda self: bool(self.asked)
    def step(self):
        outputs = []
        for name, left in self.asked.items():
            size = 2 if self.drafts and left[0] > 10 else 1
            self.count += size > 1
            outputs.append(Space(request_id=name, outputs=[Space(token_ids=left[:size])]))
            self.asked[name] = left[size:]
        self.asked = {name: left for name, left in self.asked.items() if left}
        return outputs
    def abort_request(self, names):
        self.asked = {name: left for name, left in self.asked.items() if name not in names}
    def get_metrics(self):
        said = {"drafts": Space(value=self.count), "draft_tokens": Space(value=3 * self.count),
                "accepted_tokens_per_pos": Space(values=[self.count, 0, 0])}
        return [Space(name="vllm:spec_decode_num_" + name, **vars(of)) for name, of in said.items() if self.drafts]
"""}


def drafted(drafter, text, most):
    (read := drafter.new_text()).extend(map(int, text))
    return "".join(map(str, drafter.draft(read, shapes.chain(most)).tokens.tolist()[1:]))


def test_drafters_draft_what_the_engine_drafted():
    for text, largest, smallest, most, draft in NGRAMS:
        assert drafted(NgramDrafter(largest, smallest), text, most) == draft, text
    for text, most, depth, factor, least, draft in SUFFIXES:
        assert drafted(SuffixDrafter(depth, factor, least), text, most) == draft, text
    assert NgramDrafter().traits.replay == SuffixDrafter().traits.replay == AGAIN
    assert favourite([1, 2, 2, 1]) == 1, "the first of those with one goes before those with two"
    assert favourite([1, 2, 3, 1, 3, 2]) == 2 and favourite([1, 2, 3, 1, 2]) == 2


def test_settings_are_the_engines_own():
    assert not vllm.speculation(PLAIN_WAY)
    for method, more in (("ngram", {"prompt_lookup_max": 4, "prompt_lookup_min": 1}),
                         ("suffix", {"suffix_decoding_max_cached_requests": 0}),
                         (FORCED, {"method": "custom_class", "model": "__main__.Forced"})):
        config = vllm.speculation(Way("", method, shapes.chain(8), weights=""))[CONFIG]
        assert config == {"method": method, "num_speculative_tokens": 8} | more


def test_the_driver_counts_what_one_call_drafted_and_a_refused_one_leaves_nothing(tmp_path, monkeypatch):
    for name, text in PACKAGE.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text)
    monkeypatch.setattr(vllm, "ENVIRONMENT", SimpleNamespace(python=sys.executable, folder=tmp_path))
    monkeypatch.setattr(vllm, "variables", lambda threads: {"PYTHONPATH": str(tmp_path)})
    limits = dict(window=8, batch=2, log=tmp_path / "log")
    engine = Vllm("vllm", target=SimpleNamespace(name_or_path=str(tmp_path)))
    with engine.start(Way("", "ngram", shapes.chain(3), weights=""), **limits) as running:
        for _ in range(2):
            done = running.decode([[1, 2], [3]], 4)
            assert done.tokens == [[10, 11, 12, 13]] * 2
            assert (done.drafts, done.drafted, done.accepted) == (4, 12, 4)
            assert 0 < done.prefill < done.seconds
        with pytest.raises(RuntimeError, match="vLLM refused: ValueError: the prompt is too long"):
            running.decode([[1], [1] * 5], 4)
        assert running.decode([[1]], 2).tokens == [[10, 11]], "what was added before the refusal is gone"
    with engine.start(PLAIN_WAY, **limits) as running:
        assert running.decode([[1]], 3).drafts == -1
