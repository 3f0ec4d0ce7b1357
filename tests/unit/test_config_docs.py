"""Every key is documented, and the committed document is the one that the declarations give."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from quire.config import documents
from quire.config.keys import Key
from quire.config.sections import KEYS, SECTIONS

DOCUMENT = Path(__file__).resolve().parents[2] / "docs" / "CONFIG.md"
WITHOUT_UNIT = {
    *("node.id", "node.cluster_id", "node.data_dir", "node.rack", "controller.listen_host", "controller.members"),
    *("broker.id", "broker.listeners", "broker.peer_host", "broker.peer_advertised_host", "broker.controllers"),
    *("tls.ca_file", "tls.node_file", "log.level", "log.format", "metrics.host"),
}


def test_document_is_up_to_date() -> None:
    remedy = "run: .venv/bin/quire config --docs --markdown >docs/CONFIG.md"
    assert DOCUMENT.read_text(encoding="utf-8") == documents.as_markdown(), remedy


def test_each_form_has_all_of_every_key() -> None:
    text, markdown = documents.as_text(), documents.as_markdown()
    unwrapped = re.sub(r"\s+", " ", text)
    for document in documents.documents():
        assert document["variable"] in text
        assert document["flag"] in text
        for part in (document["doc"].replace("`", ""), document["allowed"]):
            assert part in unwrapped
        row = next(line for line in markdown.splitlines() if f"`{document['variable']}`" in line)
        assert row.startswith(f"| `{document['key']}` | {document['doc']} | {document['allowed']} | ")
    assert max(map(len, text.splitlines())) <= 120


@pytest.mark.parametrize("key", KEYS.values(), ids=KEYS.keys())
def test_key_is_declared_well(key: Key) -> None:
    assert key.doc[0].isupper()
    assert key.doc.endswith(".")
    assert len(key.doc) < 160
    assert "|" not in key.doc + key.kind.allowed, "it would break the table"
    assert key.path in WITHOUT_UNIT or re.search(r"_(ms|bytes)(_min|_max)?$|_(port|entries|max)$", key.name)
    if not key.is_required:
        shown = key.default_shown
        assert key.kind.read("" if shown is None else shown) == key.default, "a default is allowed, as others are"


def test_names_are_unambiguous() -> None:
    for names in ([key.variable for key in KEYS.values()], [key.flag for key in KEYS.values()]):
        assert len(set(names)) == len(KEYS)
    assert all(section.__doc__ for section in SECTIONS.values())
