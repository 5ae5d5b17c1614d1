"""Fingerprints follow each of their parts."""

from lib.lab import provenance


def test_all_of_lib_counts_but_tests_explorers_and_training(tmp_path, monkeypatch):
    monkeypatch.setattr(provenance, "LIB", tmp_path)
    marks = [provenance.code_digest()]
    for path in ("a/code.py", "a/code.cpp", "b/table.csv", "tests/test.py", "explorers/it.py", "__pycache__/a.pyc"):
        (tmp_path / path).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / path).write_text("1")
        marks.append(provenance.code_digest())
    assert len(set(marks)) == 4 and len(set(marks[3:])) == 1


def test_a_fingerprint_follows_each_of_its_parts_and_stays_when_the_project_moves(tmp_path, monkeypatch):
    """Files of one name count apart."""
    monkeypatch.setattr(provenance, "machine", lambda device: {"device": device})

    def mark(home, said, **others):
        files = {home / where: text for where, text in zip(("heads/base/eagle", "heads/small/eagle", "models"), said)}
        for path, text in files.items():
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text)
        return provenance.fingerprint(files=files, **others)

    first = mark(tmp_path / "here", "123")
    assert mark(tmp_path / "here", "123") == mark(tmp_path / "there" / "deeper", "123") == first and len(first) == 12
    others = {mark(tmp_path / "here", said) for said in ("023", "103", "120", "213")}
    others |= {mark(tmp_path / "here", "123", **part) for part in ({"parameters": {"count": 2}}, {"device": "cuda"})}
    assert len({first, *others}) == 7

