"""What this project measures, one file per step or study: tables from models, without prose or plots.

Every speed goes through five steps: `acceptance` records the text of a backend and replays ways to draft on it,
`costs` times its steps, `predict` joins both, `race` times the most promising ways in turns, and `answer` states which
is fastest. `candidates` lists the ways that compete. Notebook 2 compares shapes and drafters by the first step alone
(`shapes_compared`, and `live` for what replay does not decide).
"""
