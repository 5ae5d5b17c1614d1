"""Pairs from folders that are made here: they load, padding is cut, and what cannot work says so in one message."""

import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from tokenizers import Tokenizer, decoders, pre_tokenizers, trainers
from tokenizers.models import BPE
from transformers import (AutoModelForCausalLM, GPT2Config, GPTNeoXConfig, Llama4TextConfig, LlamaConfig,
                          LlamaForCausalLM, PreTrainedTokenizerFast, Qwen3Config, T5Config)

from lib import decoding, models
from lib.drafters.language_model import LanguageModelDrafter
from lib.drafters.text_drafters import LookupDrafter
from lib.models import PairError, checks, registry

TEXT = ["the cat sat on the mat and the dog sat on the log", "a tree of tokens is drafted and then verified"] * 4
SMALL = dict(hidden_size=32, num_hidden_layers=2, num_attention_heads=4, num_key_value_heads=2, intermediate_size=48,
             max_position_embeddings=128, bos_token_id=0, eos_token_id=0, tie_word_embeddings=True)
NEOX = {name: SMALL[name] for name in SMALL if name != "num_key_value_heads"}


def make_tokenizer(texts=TEXT, size=300, extra=(), names=("<|end|>",)):
    tokenizer = Tokenizer(BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(vocab_size=size, special_tokens=list(names), show_progress=False,
                                  initial_alphabet=pre_tokenizers.ByteLevel.alphabet())
    tokenizer.train_from_iterator(texts, trainer)
    fast = PreTrainedTokenizerFast(tokenizer_object=tokenizer, eos_token=names[0])
    fast.add_special_tokens({"additional_special_tokens": list(extra)})
    return fast


def make_folder(path, config, tokenizer, seed=0):
    torch.manual_seed(seed)
    model = AutoModelForCausalLM.from_config(config, dtype=torch.float32)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(0.3 * torch.randn_like(parameter))  # else a random model repeats its last token for ever
    model.save_pretrained(path)
    tokenizer.save_pretrained(path)
    return str(path)


@pytest.fixture(scope="module")
def tokenizer():
    return make_tokenizer()


@pytest.fixture(scope="module")
def folders(tmp_path_factory, tokenizer):
    """A target whose vocabulary is padded beyond its tokens, and drafters with more, less and no padding."""
    home = tmp_path_factory.mktemp("models")
    return {name: make_folder(home / name, LlamaConfig(vocab_size=len(tokenizer) + padding, **SMALL), tokenizer, seed)
            for seed, (name, padding) in enumerate({"target": 8, "less": 3, "more": 20, "none": 0}.items())}


def copied(path, source, name="config.json", content=None, **changes):
    """A copy of a folder with a file of this content, or with a config.json that says something else."""
    shutil.copytree(source, path)
    config = json.loads((path / "config.json").read_text()) | changes
    (path / name).write_bytes(json.dumps(config).encode() if content is None else content)
    return str(path)


def message(name, **settings):
    with pytest.raises(PairError) as caught:
        models.load_pair(name, **settings)
    return str(caught.value)


def refused(name):
    """The message of both: the check before anything runs, and loading."""
    with pytest.raises(PairError) as caught:
        models.check_pairs([name])
    assert message(name) == str(caught.value)
    return str(caught.value)


# ------------------------------------------------------------------------------------------------- pairs that load


@pytest.mark.parametrize("drafter, padding", [("less", 3), ("more", 8), ("none", 0), ("target", 8)])
def test_vocabularies_that_differ_by_padding_just_work(folders, tokenizer, drafter, padding):
    pair = models.load_pair(f"{folders['target']}|{folders[drafter]}", dtype="float64")
    expected = len(tokenizer) + padding
    assert pair.vocabulary == pair.target.config.vocab_size == pair.draft_model.config.vocab_size == expected
    prompt = torch.tensor([pair.tokenizer("the cat sat")["input_ids"]])
    whole = AutoModelForCausalLM.from_pretrained(folders["target"], dtype=torch.float64)
    torch.testing.assert_close(pair.target(prompt).logits, whole(prompt).logits[..., :expected])
    plain = pair.target.generate(prompt, max_new_tokens=9, do_sample=False, eos_token_id=None, pad_token_id=0)
    done = decoding.generate(pair.target, LanguageModelDrafter(pair.draft_model), prompt, shape="kary:2@6",
                             max_new_tokens=9)
    assert torch.equal(done.sequences, plain) and len(set(done.new_tokens[0])) > 2


@pytest.mark.parametrize("config", [
    Qwen3Config(vocab_size=320, head_dim=8, **SMALL),
    GPT2Config(vocab_size=320, n_embd=32, n_layer=1, n_head=2, n_positions=64, bos_token_id=0, eos_token_id=0),
    GPTNeoXConfig(vocab_size=320, **NEOX)], ids=lambda config: config.model_type)
def test_other_architectures_decode_as_themselves(tmp_path, tokenizer, config):
    target = make_folder(tmp_path / "t", config, tokenizer, 1)
    config.vocab_size = 310
    pair = models.load_pair(f"{target}|{make_folder(tmp_path / 'd', config, tokenizer, 2)}", dtype="float64")
    assert pair.vocabulary == 310
    prompt = torch.tensor([pair.tokenizer("a tree of tokens")["input_ids"]])
    plain = pair.target.generate(prompt, max_new_tokens=10, do_sample=False, eos_token_id=None, pad_token_id=0)
    for drafter in (LanguageModelDrafter(pair.draft_model), LookupDrafter()):
        done = decoding.generate(pair.target, drafter, prompt, shape="kary:2@12", max_new_tokens=10)
        assert torch.equal(done.sequences, plain)


def test_a_pair_says_what_results_depend_on(folders, monkeypatch):
    monkeypatch.chdir(Path(folders["target"]).parent)
    pair = models.load_pair("./target | none", dtype=torch.bfloat16)
    assert (pair.name, pair.target_name, pair.drafter_name) == ("target|none", "target", "none")
    assert pair.window == 128 and pair.eos_token_ids == (0,) and pair.dtype == "bfloat16"
    assert not pair.target.training and pair.target.config._attn_implementation == "tree"


def test_models_that_pairs_share_are_loaded_once_and_agree_in_vocabulary(folders):
    names = ["target|more", "target|less", "more|none", "none"]
    pairs = models.load_pairs(["|".join(folders[part] for part in name.split("|")) for name in names])
    assert pairs[0].target is pairs[1].target and pairs[0].draft_model is pairs[2].target
    assert len({model.config.vocab_size for pair in pairs for model in pair.models}) == 1
    alone = pairs[3]
    assert (alone.name, alone.drafter_name, alone.draft_model) == ("none", "none", None)


def test_names_stand_for_sources(tmp_path, folders):
    assert {name for name, texts in models.PAIRS.items() if len(texts) == 1} == {"gemma3-270m", "smollm2-135m"}
    pinned, plain = models.sources("me/big@v1.2|me/small")
    assert (pinned.where, pinned.revision, pinned.name, str(pinned)) == ("me/big", "v1.2", "big@v1.2", "me/big@v1.2")
    assert plain.revision is None and plain.kind == registry.HUB
    odd = copied(tmp_path / "kept@home", folders["none"])  # a folder keeps its at sign
    assert models.sources(f"{odd}|{folders['target']}")[0].where == odd


@pytest.mark.parametrize("name", models.FAMILY)
def test_a_shipped_pair_loads_where_its_weights_are(name):
    pair = models.load_pair(name)
    text = "def add(a, b):\n    return"
    assert pair.tokenizer.decode(pair.tokenizer(text)["input_ids"]) == text
    assert pair.name == name and pair.vocabulary == len(pair.tokenizer)


def test_a_published_size_has_its_makers_number_of_parameters_and_the_same_random_weights_each_time():
    with torch.device("meta"):
        counts = {name: LlamaForCausalLM(registry.config_of_size(name)).num_parameters() for name in registry.SIZES}
    assert {name: round(count / 1e9, 3) for name, count in counts.items()} == {
        "llama-3-70b": 70.554, "llama-3-8b": 8.03, "llama-3.2-1b": 1.236, "llama-68m": 0.068, "smollm2-1.7b": 1.711,
        "smollm2-135m": 0.135}
    state = torch.get_rng_state()
    one, other = (models.load_pair("random:llama-68m@1|random:llama-68m@1", dtype="bfloat16") for _ in range(2))
    assert torch.equal(torch.get_rng_state(), state) and one.target is one.draft_model
    assert torch.equal(one.target.lm_head.weight, other.target.lm_head.weight)


# ---------------------------------------------------------------------------------------------- pairs that are refused


@pytest.mark.parametrize("name, reason", [
    ("base/tinny", "'base/tinny' is unknown; did you mean base/tiny"),
    ("qwen9000|", "or write 'TARGET' or 'TARGET|DRAFTER' with hub ids, folders or GGUF files"),
    ("qwen9000", "pair 'qwen9000' is unknown"), ("base|small|tiny", "'base|small|tiny' is unknown"),
    ("./nowhere|me/small", "no folder nowhere"), ("no.gguf", "no GGUF file no.gguf"),
    ("me/big@|me/small", "names no revision after its @"), (3, "pair 3 is unknown"), (None, "pair None is unknown"),
    ("random:llama-9b|base", "no size 'llama-9b'; give random:NAME or random:NAME@LAYERS with one of llama-3-70b"),
    ("random:llama-68m@3|base", "no size 'llama-68m' with '3' layers")])
def test_a_name_that_means_nothing(name, reason):
    assert reason in refused(name)
    with pytest.raises(PairError, match=re.escape("give a list of names, such as ['base/small']")):
        models.check_pairs("base/small")


def test_a_shipped_model_that_is_not_there(monkeypatch, tmp_path):
    monkeypatch.setattr("lib.models.registry.SHIPPED", tmp_path)
    assert f"there is no folder {tmp_path / 'base'}" in message("base/tiny")


def test_tokenizers_that_differ(tmp_path, folders, tokenizer):
    other = make_tokenizer(["quite other words were read here"] * 8)
    apart = make_folder(tmp_path / "other", LlamaConfig(vocab_size=310, **SMALL), other)
    assert "target and other have different tokenizers" in refused(f"{folders['target']}|{apart}")
    # Added tokens may have other names, but need embeddings.
    config = LlamaConfig(vocab_size=len(tokenizer) + 8, **SMALL)
    chat = make_folder(tmp_path / "chat", config, make_tokenizer(extra=["<|user|>", "<|bot|>"]), 5)
    twin = make_folder(tmp_path / "chat2", config, make_tokenizer(extra=["<|human|>"]), 6)
    assert models.load_pair(f"{chat}|{twin}").vocabulary == len(tokenizer) + 8
    reason = refused(f"{chat}|{folders['none']}")
    assert f"none has embeddings for {len(tokenizer)} tokens" in reason
    assert "chat writes 2 more, such as '<|user|>'" in reason


@pytest.mark.parametrize("config, reason", [
    (LlamaConfig(vocab_size=310, **SMALL, layer_types=["full_attention", "indexed_attention"]), "indexed_attention"),
    (T5Config(vocab_size=310, d_model=8, num_layers=1, num_heads=1), "encoder-decoder"),
    (Llama4TextConfig(vocab_size=310, **SMALL), "attends in chunks"),
], ids=["indexed", "encoder-decoder", "chunks"])
def test_attention_that_cannot_host_a_tree(tmp_path, folders, config, reason):
    config.save_pretrained(tmp_path / "odd")
    refusal = message(f"{tmp_path / 'odd'}|{folders['none']}")
    assert reason in refusal and f"({config.model_type})" in refusal and "choose another model" in refusal


@pytest.mark.parametrize("changes, reason", [
    (dict(model_type="tomorrow", architectures=["TomorrowLM"]), "does not recognize this architecture"),
    (dict(model_type="mine", auto_map={"AutoConfig": "evil.Config", "AutoModelForCausalLM": "evil.Model"}),
     "code of its own, which never runs here"),
    (dict(content=b"{nonsense"), "cannot be read as a model"),
    (dict(num_hidden_layers=3), "lacks weights for model.layers.2"),
    (dict(num_hidden_layers=10**6), "num_hidden_layers 1000000; fetch it again"),
    (dict(intermediate_size=24), "has weights of other shapes than its config.json says"),
    (dict(name="tokenizer.json", content=b"{}"), "cannot be read as a model")], ids=lambda value: str(value)[:30])
def test_files_that_belong_to_no_model(tmp_path, folders, changes, reason):
    folder = copied(tmp_path / "odd", folders["none"], **changes)
    (tmp_path / "odd" / "evil.py").write_text("raise SystemExit('ran')")
    refusal = message(f"{folder}|{folders['none']}")
    assert refusal.startswith(folder) or f" of {folder} " in refusal
    assert reason in refusal


@pytest.mark.parametrize("name, change, reason", [
    ("model.safetensors", None, "holds no model.safetensors, and no other format of weights is read"),
    ("model.safetensors", lambda whole: whole[:-1000], "is cut off, or no safetensors file (.*not fully covered"),
    ("model.safetensors", lambda whole: whole[:50], "is cut off.*invalid header length"),
    ("model.safetensors", lambda whole: b"version https://git-lfs.github.com/spec/v1\n", "is cut off.*too large"),
    ("shard", lambda whole: whole[:-10], "model-00002-of-.* is cut off"),
    ("shard", None, "model-00002-of-.* is missing"),
    ("model.safetensors.index.json", lambda whole: b"[]", "index.json is no index of weights")])
def test_a_folder_without_whole_safetensors_is_refused_before_anything_runs(
        tmp_path, folders, monkeypatch, name, change, reason):
    folder = Path(copied(tmp_path / "odd", folders["none"]))
    if name != "model.safetensors":
        AutoModelForCausalLM.from_pretrained(folder).save_pretrained(folder, max_shard_size="20KB")
        (folder / "model.safetensors").unlink(missing_ok=True)
        assert models.check_pairs([str(folder)]) is None and models.load_pair(str(folder)).target_name == "odd"
    monkeypatch.setattr(AutoModelForCausalLM, "from_pretrained", lambda *a, **k: pytest.fail("weights were read"))
    path = sorted(folder.glob("model-*"))[1] if name == "shard" else folder / name
    content = path.read_bytes()
    path.unlink() if change is None else path.write_bytes(change(content))
    torch.save({"a": torch.ones(1)}, folder / "pytorch_model.bin")
    refusal = refused(f"{folder}|{folders['none']}")
    assert refusal.startswith(str(folder)) and re.search(reason.replace("(", r"\("), refusal)


def test_a_hub_id_is_looked_up_in_the_cache_where_the_hub_must_not_be_asked(monkeypatch, tmp_path, folders):
    from huggingface_hub import constants

    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path))
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", False)
    snapshot = tmp_path / "models--me--kept" / "snapshots" / ("0" * 40)
    shutil.copytree(folders["none"], snapshot)
    (tmp_path / "models--me--kept" / "refs").mkdir()
    (tmp_path / "models--me--kept" / "refs" / "main").write_text("0" * 40)
    (snapshot / "model.safetensors").unlink()
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")  # as the command sets it, perhaps after the hub's package was imported
    for name, reason in (("me/never-fetched", "is not on this machine and the hub cannot be reached"),
                         ("me/kept", "holds no model.safetensors")):
        with pytest.raises(PairError, match=f"{name} {reason}"):
            models.check_pairs([f"{name}|{folders['none']}"])
    monkeypatch.setenv("HF_HUB_OFFLINE", "0")
    models.check_pairs([f"me/never-fetched|{folders['none']}"])


def _out_of_memory(*args, **settings):
    raise torch.OutOfMemoryError("CUDA out of memory")


def test_dtype_device_and_memory(monkeypatch, folders):
    pair = f"{folders['target']}|{folders['none']}"
    assert "dtype is 'int3'; give one of float32" in message(pair, dtype="int3")
    assert "device 'warp' with dtype 'float32' cannot be used here" in message(pair, device="warp", dtype="float32")
    monkeypatch.setattr(checks, "free_memory", lambda device: 50_000)
    assert "the weights of target in float32 and none in float32 need 0.0 GiB, 0.0 GiB are free on cpu" in message(
        pair, dtype="float32")
    monkeypatch.undo()
    monkeypatch.setattr(AutoModelForCausalLM, "from_pretrained", _out_of_memory)
    assert f"{folders['target']} did not fit into the memory of cpu" in message(pair)


HUB = """
import http.server, json, os, threading

ANSWERS = {"gone": (401, "RepoNotFound"), "gated": (403, "GatedRepo"), "pinned": (404, "RevisionNotFound")}

class Hub(http.server.BaseHTTPRequestHandler):
    def do_HEAD(self):
        code, kind = next((ANSWERS[name] for name in ANSWERS if name in self.path), (404, "EntryNotFound"))
        self.send_response(code)
        self.send_header("X-Error-Code", kind)
        self.send_header("Content-Length", "0")
        self.end_headers()
    do_GET = do_POST = do_HEAD
    def log_message(self, *args): pass

server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Hub)
threading.Thread(target=server.serve_forever, daemon=True).start()
os.environ["HF_ENDPOINT"] = f"http://127.0.0.1:{server.server_port}"
from lib import models

for name in ("me/gone", "me/gated", "me/pinned@v9", "me/blank"):
    try:
        models.load_pair(f"{name}|me/small")
    except models.PairError as error:
        print(error)
"""


def test_each_answer_of_the_hub_becomes_one_message(tmp_path):
    environment = {name: value for name, value in os.environ.items() if name != "HF_HUB_OFFLINE"} | {
        "HF_HOME": str(tmp_path), "PYTHONPATH": str(Path(models.__file__).parents[2]), "no_proxy": "*"}
    done = subprocess.run([sys.executable, "-c", HUB], capture_output=True, text=True, env=environment, timeout=240)
    assert done.returncode == 0, done.stderr
    for line, reason in zip(done.stdout.splitlines(), (
            "me/gone is neither a folder here nor a public model", "me/gated is gated; accept its licence",
            "me/pinned@v9 is no revision that the hub has", "me/blank .*config.json"), strict=True):
        assert re.match(reason, line)
