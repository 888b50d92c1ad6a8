"""What the shell makes of the words with which a scheduler's script computes its variables."""

from __future__ import annotations

from collections.abc import Mapping

from fairmile.base.commands import Here


def computed(words: Mapping[str, str], environ: Mapping[str, str]) -> dict[str, str]:
    """Return the values of variables, set as a batch script sets them."""
    lines = [f'export {name}="{word}"; printf "%s\\0" "${name}"' for name, word in words.items()]
    said = Here().run(["bash", "-c", "\n".join(lines)], env=environ).stdout
    return dict(zip(words, said.split("\0"), strict=False))
