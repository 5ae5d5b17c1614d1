"""First answers of chat prompts: the target's own greedy text, in the rows that have a second turn."""

import json

import torch

from lib.decoding.loop import continuations
from lib.forward.load import load_pair
from lib.models import dialogue
from lib.models.prompts import load
from lib.training import command


def test_answers_are_the_targets_own_and_make_the_second_turn_the_prompt(tmp_path):
    path = tmp_path / "p.jsonl"
    rows = [{"question_id": number, "category": "a", "turns": turns}
            for number, turns in enumerate([["Once upon a time"], ["def f(x):", "And\u2028then?"], ["A long story"]])]
    path.write_text("\n".join(map(json.dumps, rows)), encoding="utf-8")
    command.answer_chat_prompts(path, "tiny")
    made = [json.loads(line) for line in path.read_text(encoding="utf-8").split("\n") if line]
    pair = load_pair("tiny")
    prompt = dialogue.tokenise(dialogue.of_user("def f(x):"), pair.tokenizer)
    answer, = continuations(pair.target, [prompt], max_new_tokens=command.LONGEST, eos_token_id=pair.eos_token_ids)
    answer = pair.tokenizer.decode(answer, skip_special_tokens=True)
    assert made == [rows[0], {**rows[1], "answers": [answer]}, rows[2]]
    whole = dialogue.plain(f"def f(x):\n\n{answer}\n\nAnd\u2028then?", pair.tokenizer)
    assert torch.equal(load(path, pair.tokenizer).ids[1], whole)
