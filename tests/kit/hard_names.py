"""Names of objects that paths, queries and file systems would read as something else."""

from __future__ import annotations

import unicodedata

NAMES = [
    "a/b",
    "a%2Fb",
    "a%252Fb",
    "..",
    ".",
    " ",
    "a b",
    "a+b",
    unicodedata.normalize("NFC", "é"),
    unicodedata.normalize("NFD", "é"),
    "#",
    "?x=1",
    "%00",
    "%1F",
    "a",
    "A",
    "a/",
    ";",
    "👩‍💻",
    "x" * 255,
]
