"""Which draft tree should speculative decoding use? One idea a module; nothing is loaded before it is asked for."""
