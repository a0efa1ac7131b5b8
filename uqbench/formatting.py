"""Numbers and strings as people read them."""

from __future__ import annotations

import json
import math
import re
from typing import Any

UNDEFINED = "–"
LISTED = 6
"""Values of a grid that are printed one by one."""


def format_mean_std(mean: float, std: float = math.nan) -> tuple[str, str]:
    """Return mean and std as text, std empty if it is NaN.

    As many decimals as two significant digits of the std need, and three of a mean that is larger;
    at most four, or five for a std below 1e-4. Beyond 1e-4 and 1e6: scientific.
    """
    if math.isnan(mean):
        return UNDEFINED, ""
    if math.isinf(mean):
        return ("∞" if mean > 0 else "-∞"), ""
    spread = 0.0 if math.isnan(std) else std
    scale = max(abs(mean), spread)
    if scale and not 1e-4 <= scale < 1e6:
        texts = [f"{mean:.2e}", f"{std:.1e}"]
        texts = [re.sub(r"e([+-])0*(\d)", r"e\1\2", text).replace("e+", "e") for text in texts]
    else:
        wanted = [_decimals(spread, 2)]
        if abs(mean) >= spread:
            wanted.append(_decimals(mean, 3))
        decimals = min(max(wanted), 5 if 0 < spread < 1e-4 else 4)
        texts = [f"{mean:.{decimals}f}", f"{std:.{decimals}f}"]
        if not float(texts[0]):
            texts[0] = texts[0].removeprefix("-")
    return texts[0], ("" if math.isnan(std) else texts[1])


def format_interval(low: float, high: float) -> str:
    """Return ``0.81 to 1.20``, with the decimals that :func:`format_mean_std` gives the larger end.

    Half of the width is its deviation. An undefined interval is a dash.
    """
    if math.isnan(low) or math.isnan(high):
        return UNDEFINED
    shown, _ = format_mean_std(max(low, high, key=abs), (high - low) / 2)
    if "e" in shown:
        return " to ".join(format_mean_std(end)[0] for end in (low, high))
    decimals = len(shown.partition(".")[2])
    return f"{low:.{decimals}f} to {high:.{decimals}f}"


def _decimals(value: float, digits: int) -> int:
    """Decimals at which ``value`` shows ``digits`` significant digits; 0 for 0."""
    return max(0, digits - 1 - math.floor(math.log10(abs(value)))) if value else 0


def format_seconds(mean: float, std: float = math.nan) -> str:
    """Return a duration like ``0.15 s``, ``12.3 ± 0.4 s``, ``4 m 10 s ± 12 s`` or ``2 h 05 m``."""
    if not math.isfinite(mean):
        return format_mean_std(mean)[0]
    if mean >= 59.95:
        text = _long_duration(mean)
        return text if math.isnan(std) else f"{text} ± {_long_duration(std)}"
    if 0 < mean < 0.0005:
        return "<0.001 s"
    # two digits below a second, three above, and none finer than a millisecond
    wanted = [_decimals(mean, 2 if mean < 1 else 3), _decimals(std, 1) if std > 0 else 0]
    decimals = min(3, max(wanted))
    spread = "" if math.isnan(std) else f" ± {std:.{decimals}f}"
    return f"{mean:.{decimals}f}{spread} s"


def _long_duration(seconds: float) -> str:
    whole = round(seconds)
    if whole < 60:
        return f"{whole} s"
    if whole < 3600:
        return f"{whole // 60} m {whole % 60:02d} s"
    minutes = round(seconds / 60)
    return f"{minutes // 60} h {minutes % 60:02d} m"


def printable(text: str) -> str:
    """Return the text on one line, without control and other invisible characters."""
    return " ".join("".join(c if c.isprintable() else " " for c in text).split())


def shortened(text: str, length: int) -> str:
    """Return the text, cut to ``length`` characters with an ellipsis if it is longer."""
    return text if len(text) <= length else f"{text[: length - 1].rstrip()}…"


def counted(number: int, noun: str) -> str:
    """Return "1 cell", "2 cells"."""
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"


def compact_json(value: Any) -> str:
    """Return JSON whose text is the same for equal values: sorted keys, no blanks."""
    return json.dumps(value, sort_keys=True, separators=(",", ":"), default=str)


def setting_text(value: Any) -> str:
    """A setting as ``uqbench show`` prints it; of a long grid its size and its ends."""
    if isinstance(value, list | tuple) and len(value) > LISTED:
        return f"{len(value)} values from {value[0]:g} to {value[-1]:g}"
    return value if isinstance(value, str) else repr(value)
