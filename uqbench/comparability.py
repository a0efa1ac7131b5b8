"""Which results may stand side by side: those that differ in method, settings and seed alone."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from uqbench.formatting import compact_json, printable, shortened
from uqbench.records import Identity

_SAME_EVERYWHERE = {
    "evaluator version": "evaluator",
    "network": "network",
    "split": "split",
    "dtype": "dtype",
    "training recipe": "training",
}


def by_problem(identities: Iterable[Identity]) -> dict[tuple[str, bool], list[Identity]]:
    """Group by problem and whether it is a quick run: what shares a board, in order."""
    groups: dict[tuple[str, bool], list[Identity]] = {}
    for identity in identities:
        groups.setdefault((identity.problem, identity.quick), []).append(identity)
    return groups


def obstacle(identities: Sequence[Identity]) -> str:
    """Say why these results of one problem cannot be compared; empty if they can."""
    return next(_obstacles(identities), "")


def _obstacles(identities: Sequence[Identity]) -> Iterator[str]:
    for what, name in _SAME_EVERYWHERE.items():
        yield from _two_values(what, [(getattr(one, name), one) for one in identities])
    by_seed: dict[int, list[Identity]] = {}
    for one in identities:
        by_seed.setdefault(one.seed, []).append(one)
    for same_seed in by_seed.values():
        prints = [(one.fingerprint, one) for one in same_seed]
        yield from _two_values("data fingerprint", prints)
        # methods that train their own networks have none
        networks = [(one.map_checkpoint, one) for one in same_seed if one.map_checkpoint]
        yield from _two_values("MAP network", networks)
    # Generated data differ from seed to seed; of one data set no seed may stand out
    prints = [(group[0].fingerprint, group[0]) for group in by_seed.values()]
    if len({value for value, _ in prints}) < len(prints):
        yield from _two_values("data fingerprint", prints)


def _two_values(what: str, values: Sequence[tuple[Any, Identity]]) -> Iterator[str]:
    for value, one in values[1:]:
        first_value, first = values[0]
        if compact_json(value) == compact_json(first_value):
            continue
        if isinstance(value, Mapping):  # name only what differs
            keys = [k for k in {**first_value, **value} if first_value.get(k) != value.get(k)]
            first_value, value = ({k: v.get(k) for k in keys} for v in (first_value, value))
        sides = [
            f"{shortened(seen, 24) if isinstance(seen, str) else shortened(compact_json(seen), 64)}"
            f" ({printable(of.method)}, seed {of.seed})"
            for seen, of in ((first_value, first), (value, one))
        ]
        yield (
            f"{printable(one.problem)}: results that differ in {what} cannot share a leaderboard: "
            f"{sides[0]} and {sides[1]}."
        )
