"""Which draft tree should speculative decoding use? Fourteen packages, each importing only those before it:

lab, kernels, trees, verify, attention, models, forward, drafters, decoding, replay, engines, study, explorers, training.
Each package's docstring says what it is for and where to start.
"""
