"""Suggestions for misspelt names."""

from collections.abc import Iterable
from difflib import get_close_matches


def did_you_mean(name: str, known: Iterable[str]) -> str:
    """Return " Did you mean 'x'?", else the list of known names, to end an error message with."""
    known = sorted(known)
    close = get_close_matches(name.lower(), known, n=1, cutoff=0.6)
    if close:
        return f" Did you mean '{close[0]}'?"
    return f" Known: {', '.join(known)}." if known else ""
