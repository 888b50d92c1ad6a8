"""Words that people type: the nearest known word, and names that are safe in paths and addresses."""

from __future__ import annotations

from collections.abc import Iterable

_CUTOFF = 0.6  # difflib's own default: below it the suggestions look random
_BY_PROBES = 1500
_BY_PAIRS = 80
_SLUG_BYTES = 120


def closest(word: str, candidates: Iterable[str], n: int = 3) -> list[str]:
    """Return up to `n` candidates that resemble `word`, the nearest first, ignoring case."""
    from difflib import SequenceMatcher

    wanted = word.casefold()
    if not wanted or n < 1:
        return []
    matcher = SequenceMatcher(autojunk=False)
    matcher.set_seq2(wanted)
    ranked: list[tuple[float, int, str]] = []
    for folded, original in _shortlist(wanted, candidates):
        matcher.set_seq1(folded)
        if matcher.quick_ratio() < _CUTOFF:
            continue
        ratio = matcher.ratio()
        if ratio >= _CUTOFF:
            ranked.append((-ratio, abs(len(folded) - len(wanted)), original))
    return list(dict.fromkeys(original for _, _, original in sorted(ranked)))[:n]


def did_you_mean(word: str, candidates: Iterable[str]) -> str:
    """Return "did you mean 'x'?" for the nearest candidate, or an empty text when none is near."""
    near = closest(word, candidates, 1)
    return f"did you mean {near[0]!r}?" if near else ""


def slug(text: str, *, keep_case: bool = False) -> str:
    """Return `text` as a name of ASCII letters, digits, dots, dashes and underscores that is never empty."""
    import re
    import unicodedata

    normal = unicodedata.normalize("NFKC", text)
    if not keep_case:
        normal = normal.lower()

    def join(match: re.Match[str]) -> str:
        # A run that is dashes alone was written so on purpose; any other run becomes one dash.
        run = match[0]
        return run if not run.strip("-") else "-"

    name = re.sub(r"[^a-zA-Z0-9._]+", join, normal).strip(".-")
    return name[:_SLUG_BYTES].rstrip(".-") or "unnamed"


def _shortlist(wanted: str, candidates: Iterable[str]) -> list[tuple[str, str]]:
    """Return candidates, folded and as given, that are worth the exact and slow comparison (about 50 µs each)."""
    size = len(wanted)
    # ratio = 2·matches/(a+b) and matches <= min(a, b) bound the lengths that can reach the cutoff.
    shortest, longest = size * _CUTOFF / (2 - _CUTOFF), size * (2 - _CUTOFF) / _CUTOFF
    originals = [text for text in candidates if shortest <= len(text) <= longest]
    folded = "\n".join(originals).casefold().split("\n")  # one call instead of one for each
    if len(folded) != len(originals):
        folded = [text.casefold() for text in originals]
    chosen = list(range(len(originals)))
    if len(chosen) > _BY_PROBES:
        # Written out because a loop over the probes takes twice as long, and this is the whole cost.
        a, b, c, d, e, f = _probes(wanted)
        scores = [(a in x) + (b in x) + (c in x) + (d in x) + (e in x) + (f in x) for x in folded]
        chosen = _best(chosen, scores, folded, size, _BY_PROBES)
    if len(chosen) > _BY_PAIRS:
        pairs = {wanted[i : i + 2] for i in range(size - 1)}
        scores = [0] * len(folded)
        for i in chosen:
            scores[i] = sum(map(folded[i].__contains__, pairs))
        chosen = _best(chosen, scores, folded, size, _BY_PAIRS)
    return [(folded[i], originals[i]) for i in chosen]


def _probes(wanted: str) -> list[str]:
    """Return six pieces spread over the word, of which one typing error spoils few."""
    width = 1 if len(wanted) <= 5 else 2 if len(wanted) <= 10 else 3
    last = len(wanted) - width
    return [wanted[at : at + width] for at in (round(last * i / 5) for i in range(6))]


def _best(chosen: list[int], scores: list[int], folded: list[str], size: int, count: int) -> list[int]:
    """Return up to `count` of `chosen` with the highest scores above 0, of equals those nearest in length."""
    level, above = max(scores), 0
    while level > 1 and above + scores.count(level) <= count:
        above += scores.count(level)
        level -= 1
    best = [i for i in chosen if scores[i] > level]
    tied = [i for i in chosen if scores[i] == level > 0]
    if len(best) + len(tied) > count:
        near = [i for i in tied if -2 < len(folded[i]) - size < 2]
        tied = (
            near if len(best) + len(near) >= count else near + [i for i in tied if not -2 < len(folded[i]) - size < 2]
        )
    return best + tied[: count - len(best)]
