"""What docs/SDK.md shows is what happens."""

from __future__ import annotations

import contextlib
import inspect
import io
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import quire
from quire import Admin, Consumer, Producer, TopicPartition, errors
from quire._client.topic_config import NAMES
from tests.integration.sdk_cluster import SdkCluster, sdk_cluster

TEXT = (Path(__file__).resolve().parents[2] / "docs" / "SDK.md").read_text(encoding="utf-8")
BLOCKS = re.findall(r"```(\w*)\n(.*?)```", TEXT, re.S)


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SdkCluster]:
    yield from sdk_cluster(tmp_path_factory)


def block(beginning: str) -> str:
    found: list[str] = [text for _, text in BLOCKS if text.startswith(beginning)]
    assert len(found) == 1
    return found[0]


def run(cluster: SdkCluster, text: str, **names: Any) -> str:
    said = io.StringIO()
    with contextlib.redirect_stdout(said):
        exec(text.replace("localhost:7400", cluster.addresses[0]), names)
    return said.getvalue()


def test_first_example_prints_what_is_shown(cluster: SdkCluster) -> None:
    shown = block("Stored(")
    changes = re.compile(r"timestamp_ms=\d+")
    printed = run(cluster, block("from quire import Admin, Consumer, Producer"))
    assert changes.sub("", printed) == changes.sub("", shown)


def test_examples_of_each_client_run(cluster: SdkCluster) -> None:
    run(cluster, block('with Admin("localhost:7400") as admin:').replace('"orders"', '"made"'), Admin=Admin)
    topic = cluster.topic()
    with Producer(cluster.addresses) as producer:
        delivery = producer.send(topic, b"v")
        run(cluster, block("delivery.result(").replace("print", "repr"), delivery=delivery)
        run(cluster, block("deliveries = ").replace("orders", topic), producer=producer, values=[b"a", b"b"])
        with Consumer(cluster.addresses, topic, start="earliest") as consumer:
            # All but the loop, which has no end.
            _, _, rest = block("for message in consumer:\n    ...").partition("messages = ")
            run(
                cluster,
                f"messages = {rest}".replace("orders", topic),
                consumer=consumer,
                TopicPartition=TopicPartition,
            )


def test_error_without_a_broker_is_as_shown() -> None:
    shown = block("UnavailableError: ")
    with Admin("localhost:1", connect_ms_max=100) as admin, pytest.raises(errors.UnavailableError) as caught:
        admin.list_topics()
    assert f"UnavailableError: {caught.value.message}\n".replace("localhost:1 ", "localhost:7400 ") == shown


def rows(heading: str) -> list[list[str]]:
    """The cells of the first table below a heading."""
    section = TEXT.split(f"\n## {heading}\n")[1]
    table = re.search(r"(?:^\|.*\n)+", section, re.M)
    assert table is not None
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in table[0].splitlines()[2:]]


@pytest.mark.parametrize("client", [Producer, Consumer])
def test_arguments_and_defaults_are_those_of_the_code(client: type[Any]) -> None:
    parameters = inspect.signature(client).parameters
    documented: dict[str, str] = {}
    for names, default, _ in rows(client.__name__):
        documented |= dict.fromkeys(re.findall(r"`(\w+)`", names), default)
    keywords = {name: each for name, each in parameters.items() if each.kind is inspect.Parameter.KEYWORD_ONLY}
    assert set(documented) == set(keywords)
    units = {"KiB": 1024, "MiB": 1024 * 1024}
    for name, default in documented.items():
        if not default:
            continue  # as for a producer
        number, _, unit = default.strip("`").replace(",", "").partition(" ")
        meant = int(number) * units[unit] if unit else default.strip("`").replace(",", "")
        actual = keywords[name].default
        assert meant in (actual, repr(actual).replace("'", '"')) or float(number) == actual, name


def test_settings_are_those_of_the_code() -> None:
    assert {name for names, _, _ in rows("Admin") for name in re.findall(r"`(\w+)`", names)} == set(NAMES)


def test_errors_are_there() -> None:
    for names, _, advice in rows("Errors"):
        assert advice
        for name in re.findall(r"`(\w+)`", names):
            assert issubclass(getattr(errors, name), errors.QuireError)


def test_modules_are_there() -> None:
    folder = Path(quire.__file__).parent / "_client"
    here = Path(__file__).resolve().parents[2]
    for names, _, kept_by in rows("How it works"):
        for name in re.findall(r"`([\w*]+\.py)`", names):
            assert list(folder.glob(name)), name
        for name in re.findall(r"`(tests/[\w/*]+\.py)`", kept_by):
            assert list(here.glob(name)), name
