"""Seeds derived from names, so that comparisons between methods are paired.

The data and MAP seeds do not depend on the method: every method sees the same split and the same
network for a given (problem, seed).
"""

import hashlib

BASE = "uqbench-1"


def derive_seed(problem: str, seed: int, role: str, base: str = BASE) -> int:
    """Return the first 8 bytes of sha256(base, problem, seed, role) as an unsigned 64-bit integer.

    Roles in use: ``split`` (and generated data), ``map`` (initialisation and batch order of the
    MAP network), ``method`` (all that a method draws).
    """
    text = "\x00".join((base, problem, str(seed), role))
    return int.from_bytes(hashlib.sha256(text.encode()).digest()[:8], "big")
