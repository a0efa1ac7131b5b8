"""Suggestions for misspelt names."""

from collections.abc import Iterable
from difflib import get_close_matches

_LISTED = 20


def did_you_mean(name: str, known: Iterable[str]) -> str:
    """Return " Did you mean 'x'?", else the list of known names, to end an error message with.

    Upper and lower case do not matter; of a long list the first 20 are named.
    """
    known = sorted(known)
    by_lower_case = {candidate.lower(): candidate for candidate in known}
    close = get_close_matches(name.lower(), by_lower_case, n=1, cutoff=0.6)
    if close:
        return f" Did you mean '{by_lower_case[close[0]]}'?"
    rest = f", and {len(known) - _LISTED} more" if len(known) > _LISTED else ""
    return f" Known: {', '.join(known[:_LISTED])}{rest}." if known else ""
