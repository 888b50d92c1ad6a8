"""Words that people type: the nearest known word, and names that are safe in paths and addresses."""

from __future__ import annotations

import os
from collections.abc import Iterable

_CUTOFF = 0.6  # difflib's own default: below it the suggestions look random
# Letters that each finer comparison may look at, so that long names cost no more than short ones.
_LETTERS_BY_PAIRS = 15_000
_LETTERS_EXACT = 1_500
_SLUG_BYTES = 120
_MOST_SUGGESTED = 20


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


class Suggestions:
    """`did_you_mean` for the first unknown words of a document: thousands of them are no slips, and would take long."""

    def __init__(self) -> None:
        self._left = _MOST_SUGGESTED

    def __call__(self, word: str, candidates: Iterable[str]) -> str:
        self._left -= 1
        return did_you_mean(word, candidates) if self._left >= 0 else ""


def slug(text: str, *, keep_case: bool = False) -> str:
    """Return `text` as a name of ASCII letters, digits, dots, dashes and underscores that is never empty.

    Accents are dropped. Where letters of another script, or an end that is too long, would be lost,
    a piece of the text's digest keeps two different texts from getting one name.
    """
    is_one = text.isascii() and text.replace("_", "a").isalnum() and len(text) <= _SLUG_BYTES
    if is_one and (keep_case or text.islower()):
        return text
    import re

    normal = text if text.isascii() else _without_accents(text)
    if not keep_case:
        normal = normal.lower()

    def join(match: re.Match[str]) -> str:
        # A run that is dashes alone was written so on purpose; any other run becomes one dash.
        run = match[0]
        return run if not run.strip("-") else "-"

    name = re.sub(r"[^a-zA-Z0-9._]+", join if "--" in normal else "-", normal).strip(".-")
    is_lossless = text.isascii() or not any(each.isalnum() and not each.isascii() for each in set(normal))
    lossy = len(name) > _SLUG_BYTES or not is_lossless
    if not lossy:
        return name or "unnamed"
    import hashlib

    digest = hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()[:8]
    return f"{name[: _SLUG_BYTES - 9].rstrip('.-')}-{digest}".lstrip("-")


def _without_accents(text: str) -> str:
    import unicodedata

    return "".join(each for each in unicodedata.normalize("NFKD", text) if not unicodedata.combining(each))


def _shortlist(wanted: str, candidates: Iterable[str]) -> list[tuple[str, str]]:
    """Return candidates, folded and as given, that are worth the exact and slow comparison (about 50 µs each)."""
    size = len(wanted)
    # ratio = 2·matches/(a+b) and matches <= min(a, b) bound the lengths that can reach the cutoff.
    shortest, longest = int(size * _CUTOFF / (2 - _CUTOFF)), int(size * (2 - _CUTOFF) / _CUTOFF) + 1
    originals = [text for text in candidates if shortest <= len(text) <= longest]
    folded = "\n".join(originals).casefold().split("\n")  # one call instead of one for each
    if len(folded) != len(originals):
        folded = [text.casefold() for text in originals]
    by_pairs, exact = max(200, _LETTERS_BY_PAIRS // size), max(20, _LETTERS_EXACT // size)
    if len(folded) > by_pairs:
        sample = folded[:: len(folded) // 100]
        # Pieces that tell the names apart come first; where none of them occurs, the common ones still do.
        scores = _count(folded, _probes(wanted, sample))
        if not any(scores):
            scores = _count(folded, _probes(wanted, []))
        chosen = _best(scores, folded, size, by_pairs)
        folded, originals = [folded[i] for i in chosen], [originals[i] for i in chosen]
    if len(folded) > exact:
        pairs = {wanted[i : i + 2] for i in range(size - 1)}
        chosen = _best([sum(map(text.__contains__, pairs)) for text in folded], folded, size, exact)
        folded, originals = [folded[i] for i in chosen], [originals[i] for i in chosen]
    return list(zip(folded, originals, strict=True))


def _count(folded: list[str], probes: tuple[str, str, str, str]) -> list[int]:
    # Written out because a loop over the probes takes twice as long, and this is most of the cost.
    a, b, c, d = probes
    return [(a in text) + (b in text) + (c in text) + (d in text) for text in folded]


def _probes(wanted: str, sample: list[str]) -> tuple[str, str, str, str]:
    """Return four pieces spread over the word, passing over those that most of `sample` holds."""
    width = 1 if len(wanted) <= 5 else 2 if len(wanted) <= 10 else 3
    pieces = list(dict.fromkeys(wanted[i : i + width] for i in range(len(wanted) - width + 1)))
    telling = [piece for piece in pieces if 2 * sum(piece in text for text in sample) <= len(sample)]
    pieces = telling if len(telling) >= 4 else pieces
    last = len(pieces) - 1
    return pieces[0], pieces[round(last / 3)], pieces[round(last * 2 / 3)], pieces[last]


def _best(scores: list[int], folded: list[str], size: int, count: int) -> list[int]:
    """Return the places of up to `count` of the highest scores above 0, of equals first those near in length."""
    from itertools import islice

    level, above = max(scores), 0
    while level > 1 and above + (here := scores.count(level)) <= count:
        above += here
        level -= 1
    if level == 0:
        return []
    kept = [i for i, score in enumerate(scores) if score >= level]
    if len(kept) <= count:
        return kept
    best = [i for i in kept if scores[i] > level] if above else []
    # Thousands may tie: a pass stops as soon as enough are found.
    near = (i for i in kept if scores[i] == level and -2 < len(folded[i]) - size < 2)
    best += islice(near, count - len(best))
    far = (i for i in kept if scores[i] == level and not -2 < len(folded[i]) - size < 2)
    return best + list(islice(far, count - len(best)))


def place(system: str) -> str:
    """Return where work is in a list: a system, a host, or `here` for this machine, by whichever name."""
    return "here" if system in ("", "laptop", os.uname().nodename) else system
