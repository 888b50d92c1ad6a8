"""Words that people type: the nearest known word, and names that are safe in paths and addresses."""

from __future__ import annotations

from collections.abc import Iterable

_CUTOFF = 0.6  # difflib's own default: below it the suggestions look random
_BY_LETTERS = 1500
_BY_PAIRS = 120
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
    # difflib needs about 20 µs for a pair, too slow for a whole catalog. Two cheap counts done in C
    # (letters shared, then pairs of letters shared) leave it a bounded number of pairs.
    size = len(wanted)
    # ratio = 2·matches/(a+b) and matches <= min(a, b) bound the lengths that can reach the cutoff.
    shortest, longest = size * _CUTOFF / (2 - _CUTOFF), size * (2 - _CUTOFF) / _CUTOFF
    pairs = [(text.casefold(), text) for text in candidates if shortest <= len(text) <= longest]
    if len(pairs) > _BY_LETTERS:
        shared_letters = set(wanted).intersection
        pairs = _best(pairs, [len(shared_letters(folded)) * 8 - abs(len(folded) - size) for folded, _ in pairs])
    if len(pairs) > _BY_PAIRS:
        bigrams = {wanted[i : i + 2] for i in range(size - 1)}
        scores = [sum(map(folded.__contains__, bigrams)) * 8 - abs(len(folded) - size) for folded, _ in pairs]
        pairs = _best(pairs, scores, _BY_PAIRS)
    return pairs


def _best(pairs: list[tuple[str, str]], scores: list[int], count: int = _BY_LETTERS) -> list[tuple[str, str]]:
    order = sorted(range(len(pairs)), key=scores.__getitem__, reverse=True)
    return [pairs[i] for i in order[:count]]
