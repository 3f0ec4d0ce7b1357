"""All that users are promised has a test that is named here: methods of the SDK, verbs, errors, what commands say.

What is new fails here until it has one, and so does a test that is renamed or does not use what it is named for.
"""

from __future__ import annotations

import inspect
import re
from collections.abc import Iterator
from importlib.metadata import entry_points
from pathlib import Path
from types import ModuleType
from typing import Any, Final

import pytest
import typer

import quire
from quire import aio
from quire.errors import ERRORS_BY_REASON
from tests.unit import shown

DOCS: Final = Path(__file__).resolve().parents[2] / "docs"
ADMIN: Final = "integration/test_sdk_admin.py::"
AIO: Final = "integration/test_sdk_aio.py::"
BROKER: Final = "integration/test_broker_refusals.py::"
CALLS: Final = "integration/test_broker_hostile_calls.py::"
CONSUMER: Final = "integration/test_sdk_consumer.py::"
CONTROLLER: Final = "integration/test_controller_process.py::"
HOSTILE: Final = "integration/test_broker_hostile.py::"
MOVES: Final = "integration/test_moves.py::"
PRODUCER: Final = "integration/test_sdk_producer.py::"
UP: Final = "integration/test_up.py::"
VERBS: Final = "integration/test_cli_verbs.py::"
WRITER: Final = "integration/test_log_writer.py::"

METHODS: Final = {
    "Admin.__enter__": f"{ADMIN}test_topic_that_cannot_be_made",
    "Admin.add_partitions": f"{PRODUCER}test_partitions_that_are_added_are_used",
    "Admin.alter_topic": f"{ADMIN}test_topic_from_its_making_to_its_end",
    "Admin.cancel_move": f"{ADMIN}test_moves_and_drains",
    "Admin.close": f"{ADMIN}test_closed_admin_says_so",
    "Admin.create_topic": f"{ADMIN}test_topic_from_its_making_to_its_end",
    "Admin.delete_topic": f"{ADMIN}test_topic_from_its_making_to_its_end",
    "Admin.describe_cluster": f"{ADMIN}test_cluster",
    "Admin.describe_quorum": f"{ADMIN}test_quorum",
    "Admin.describe_topic": f"{ADMIN}test_topic_from_its_making_to_its_end",
    "Admin.drain_broker": f"{ADMIN}test_moves_and_drains",
    "Admin.elect_preferred": f"{ADMIN}test_moves_and_drains",
    "Admin.follower_lag": f"{ADMIN}test_moves_and_drains",
    "Admin.list_moves": f"{ADMIN}test_moves_and_drains",
    "Admin.list_topics": f"{ADMIN}test_many_topics_come_in_pages_and_in_order",
    "Admin.move_partition": f"{ADMIN}test_moves_and_drains",
    "Admin.offsets": f"{ADMIN}test_offsets",
    "Admin.undrain": f"{ADMIN}test_moves_and_drains",
    "Admin.unregister_broker": f"{ADMIN}test_moves_and_drains",
    "Consumer.__enter__": f"{CONSUMER}test_several_topics",
    "Consumer.__iter__": f"{CONSUMER}test_iteration_goes_on_until_closed",
    "Consumer.__next__": f"{CONSUMER}test_poll_and_iteration_mix",
    "Consumer.assign": f"{CONSUMER}test_assign_replaces",
    "Consumer.assignment": f"{CONSUMER}test_assign_replaces",
    "Consumer.beginning_offsets": f"{CONSUMER}test_offsets_of_partitions",
    "Consumer.close": f"{CONSUMER}test_closed_consumer_says_so",
    "Consumer.end_offsets": f"{CONSUMER}test_offsets_of_partitions",
    "Consumer.offsets_at": f"{CONSUMER}test_offsets_of_partitions",
    "Consumer.pause": f"{CONSUMER}test_pause_and_resume",
    "Consumer.poll": f"{CONSUMER}test_poll_is_bounded_in_time_and_number",
    "Consumer.position": f"{CONSUMER}test_poll_and_iteration_mix",
    "Consumer.resume": f"{CONSUMER}test_pause_and_resume",
    "Consumer.seek": f"{CONSUMER}test_seek_hands_out_nothing_of_the_old_position",
    "Consumer.seek_to_time": f"{CONSUMER}test_seek_hands_out_nothing_of_the_old_position",
    "Deliveries.__len__": f"{PRODUCER}test_many_records_at_once",
    "Deliveries.done": f"{PRODUCER}test_many_records_at_once",
    "Deliveries.exception": f"{PRODUCER}test_many_records_at_once",
    "Deliveries.result": f"{PRODUCER}test_many_records_at_once",
    "Delivery.add_done_callback": f"{PRODUCER}test_callbacks_are_called_once_whenever_they_are_added",
    "Delivery.done": f"{PRODUCER}test_delivery_tells_where_a_record_is_and_how_safe",
    "Delivery.exception": f"{PRODUCER}test_delivery_tells_where_a_record_is_and_how_safe",
    "Delivery.result": f"{PRODUCER}test_delivery_tells_where_a_record_is_and_how_safe",
    "Producer.__enter__": f"{PRODUCER}test_acks",
    "Producer.close": f"{PRODUCER}test_closed_producer_says_so",
    "Producer.flush": f"{PRODUCER}test_flush_does_not_linger",
    "Producer.send": f"{PRODUCER}test_delivery_tells_where_a_record_is_and_how_safe",
    "Producer.send_many": f"{PRODUCER}test_many_records_at_once",
    "aio.Admin.__aenter__": f"{AIO}test_admin",
    "aio.Admin.add_partitions": f"{AIO}test_admin",
    "aio.Admin.alter_topic": f"{AIO}test_admin",
    "aio.Admin.cancel_move": f"{AIO}test_moves_and_drains",
    "aio.Admin.close": f"{AIO}test_admin",
    "aio.Admin.create_topic": f"{AIO}test_admin",
    "aio.Admin.delete_topic": f"{AIO}test_admin",
    "aio.Admin.describe_cluster": f"{AIO}test_admin",
    "aio.Admin.describe_quorum": f"{AIO}test_admin",
    "aio.Admin.describe_topic": f"{AIO}test_admin",
    "aio.Admin.drain_broker": f"{AIO}test_moves_and_drains",
    "aio.Admin.elect_preferred": f"{AIO}test_moves_and_drains",
    "aio.Admin.follower_lag": f"{AIO}test_moves_and_drains",
    "aio.Admin.list_moves": f"{AIO}test_moves_and_drains",
    "aio.Admin.list_topics": f"{AIO}test_admin",
    "aio.Admin.move_partition": f"{AIO}test_moves_and_drains",
    "aio.Admin.offsets": f"{AIO}test_admin",
    "aio.Admin.undrain": f"{AIO}test_moves_and_drains",
    "aio.Admin.unregister_broker": f"{AIO}test_moves_and_drains",
    "aio.Consumer.__aenter__": f"{AIO}test_consumer",
    "aio.Consumer.__aiter__": f"{AIO}test_consumer",
    "aio.Consumer.__anext__": f"{AIO}test_consumer",
    "aio.Consumer.assign": f"{AIO}test_consumer",
    "aio.Consumer.assignment": f"{AIO}test_consumer",
    "aio.Consumer.beginning_offsets": f"{AIO}test_consumer",
    "aio.Consumer.close": f"{AIO}test_consumer_that_is_not_entered_begins_with_the_first_poll",
    "aio.Consumer.end_offsets": f"{AIO}test_consumer",
    "aio.Consumer.offsets_at": f"{AIO}test_consumer",
    "aio.Consumer.pause": f"{AIO}test_consumer",
    "aio.Consumer.poll": f"{AIO}test_consumer",
    "aio.Consumer.position": f"{AIO}test_consumer",
    "aio.Consumer.resume": f"{AIO}test_consumer",
    "aio.Consumer.seek": f"{AIO}test_consumer",
    "aio.Consumer.seek_to_time": f"{AIO}test_consumer",
    "aio.Deliveries.__await__": f"{AIO}test_delivery_is_awaited",
    "aio.Deliveries.__len__": f"{AIO}test_delivery_is_awaited",
    "aio.Deliveries.done": f"{AIO}test_delivery_is_awaited",
    "aio.Deliveries.exception": f"{AIO}test_delivery_is_awaited",
    "aio.Deliveries.result": f"{AIO}test_delivery_is_awaited",
    "aio.Delivery.__await__": f"{AIO}test_delivery_is_awaited",
    "aio.Delivery.add_done_callback": f"{AIO}test_delivery_is_awaited",
    "aio.Delivery.done": f"{AIO}test_loop_that_only_sends_is_delivered_meanwhile",
    "aio.Delivery.exception": f"{AIO}test_full_buffer_and_deadlines",
    "aio.Delivery.result": f"{AIO}test_delivery_is_awaited",
    "aio.Producer.__aenter__": f"{AIO}test_delivery_is_awaited",
    "aio.Producer.close": f"{AIO}test_full_buffer_and_deadlines",
    "aio.Producer.flush": f"{AIO}test_loop_that_only_sends_is_delivered_meanwhile",
    "aio.Producer.send": f"{AIO}test_delivery_is_awaited",
    "aio.Producer.send_many": f"{AIO}test_delivery_is_awaited",
}
"""All against broker processes."""

COMMANDS: Final = {
    "bench": f"{VERBS}test_bench",
    "certs add": "integration/test_certs_cli.py::test_added_node_belongs_to_the_same_cluster",
    "certs init": "integration/test_certs_cli.py::test_files_and_what_is_said_about_them",
    "cluster": f"{VERBS}test_cluster_that_is_well",
    "cluster drain": f"{MOVES}test_broker_is_drained_and_leaves",
    "cluster unregister": f"{MOVES}test_broker_is_drained_and_leaves",
    "config": "integration/test_config_cli.py::test_effective_configuration_is_toml_with_sources",
    "consume": f"{VERBS}test_line_goes_in_and_comes_out",
    "log dump": "integration/test_cli_log.py::test_works_while_a_broker_is_writing",
    "log stat": "integration/test_cli_log.py::test_works_while_a_broker_is_writing",
    "log verify": "integration/test_cli_log.py::test_works_while_a_broker_is_writing",
    "node": "integration/test_up_node.py::test_runs_its_role_and_stops",
    "offsets": f"{VERBS}test_offsets",
    "produce": f"{VERBS}test_line_goes_in_and_comes_out",
    "topic alter": f"{VERBS}test_topic_from_its_making_to_its_end",
    "topic create": f"{VERBS}test_topic_from_its_making_to_its_end",
    "topic delete": f"{VERBS}test_topic_is_deleted_only_if_it_is_meant",
    "topic describe": f"{VERBS}test_topic_from_its_making_to_its_end",
    "topic move": f"{MOVES}test_moved_partition_is_shown_on_the_command_line",
    "topic list": f"{VERBS}test_topic_from_its_making_to_its_end",
    "up": f"{UP}test_says_what_a_person_needs_and_stops_on_ctrl_c",
    "verify": f"{VERBS}test_verify_judges_what_was_sent_and_read",
}

ERRORS: Final = {
    "UNKNOWN": "unit/test_sdk_refusals.py::test_reason_of_a_newer_server_is_kept_and_acted_on_by_its_status",
    "MALFORMED_BATCH": f"{CALLS}test_batches_that_lie",
    "BATCH_TOO_LARGE": f"{PRODUCER}test_record_that_no_batch_can_hold_is_refused_at_once",
    "CHECKSUM_MISMATCH": f"{CALLS}test_batches_that_lie",
    "POISON_BATCH": "integration/test_sdk_errors.py::test_batch_that_does_not_decode",
    "UNSUPPORTED_BATCH": f"{CALLS}test_batches_that_lie",
    "OUT_OF_ORDER_SEQUENCE": f"{BROKER}test_sequences_out_of_their_order",
    "DUPLICATE_SEQUENCE": f"{BROKER}test_sequences_out_of_their_order",
    "PRODUCER_FENCED": "integration/test_sdk_errors.py::test_producer_id_that_somebody_else_took",
    "OFFSET_OUT_OF_RANGE": f"{CONSUMER}test_offset_that_is_out_of_range_is_told_with_advice",
    "DAMAGED_RANGE": "integration/test_sdk_errors.py::test_damage_on_the_disk",
    "DAMAGED_FILE": "property/test_raft_damage.py::test_missing_files",
    "STALE_EPOCH": f"{BROKER}test_leaders_that_are_none",
    "LOG_BUSY": f"{HOSTILE}test_large_requests_at_once",
    "DISK_FULL": "unit/test_broker_services_produce.py::test_a_full_disk_is_an_answer_that_passes",
    "DISK_IO": f"{CONTROLLER}test_member_that_cannot_write_ends_itself",
    "SYNC_FAILED": f"{WRITER}test_a_failed_sync_answers_everyone_and_takes_the_log_offline",
    "LOG_OFFLINE": f"{WRITER}test_a_failed_sync_answers_everyone_and_takes_the_log_offline",
    "INVALID_ARGUMENT": f"{CALLS}test_bytes_that_are_no_request",
    "UNAVAILABLE": f"{PRODUCER}test_no_broker_says_how_to_start_one",
    "OUTCOME_UNKNOWN": f"{PRODUCER}test_record_that_nobody_answers_for_is_unknown",
    "MALFORMED_FRAME": "unit/test_link_frames.py::test_stranger_is_told_by_the_first_bytes",
    "PEER_REFUSED": "integration/test_link_hostile.py::test_dialer_does_not_greet_an_acceptor_that_is_another_node",
    "LINK_BUSY": "contract/test_link.py::test_single_frame_over_the_limit_passes_when_nothing_else_waits",
    "TOPIC_ALREADY_EXISTS": f"{ADMIN}test_change_that_cannot_be_made",
    "UNKNOWN_TOPIC": f"{PRODUCER}test_unknown_topic",
    "UNKNOWN_PARTITION": f"{CALLS}test_places_that_are_none",
    "INVALID_TOPIC_NAME": f"{ADMIN}test_topic_that_cannot_be_made",
    "NOT_ENOUGH_BROKERS": f"{BROKER}test_changes_that_cannot_be_made",
    "UNKNOWN_BROKER": f"{BROKER}test_changes_that_cannot_be_made",
    "STALE_BROKER_EPOCH": f"{BROKER}test_changes_that_cannot_be_made",
    "BROKER_FENCED": f"{BROKER}test_replicas_do_not_move_twice_at_once_nor_to_who_is_away",
    "BROKER_NOT_EMPTY": f"{BROKER}test_changes_that_cannot_be_made",
    "STALE_PARTITION_EPOCH": f"{BROKER}test_changes_that_cannot_be_made",
    "NO_ELIGIBLE_LEADER": f"{BROKER}test_changes_that_cannot_be_made",
    "REASSIGNMENT_IN_PROGRESS": f"{BROKER}test_replicas_do_not_move_twice_at_once_nor_to_who_is_away",
    "NO_REASSIGNMENT_IN_PROGRESS": f"{BROKER}test_changes_that_cannot_be_made",
    "LIMIT_EXCEEDED": f"{BROKER}test_changes_that_cannot_be_made",
    "UNSUPPORTED_FEATURE": f"{BROKER}test_changes_that_cannot_be_made",
    "CLUSTER_ID_MISMATCH": f"{CONTROLLER}test_watch_is_refused_from_the_future_and_for_others",
    "NOT_CONTROLLER": "unit/test_controller_state_machine.py::test_terms_only_rise",
    "DUPLICATE_COMMAND": f"{CONTROLLER}test_retry_is_answered_as_the_first_time",
    "NOT_LEADER": f"{BROKER}test_leaders_that_are_none",
    "NOT_ENOUGH_REPLICAS": "integration/test_cluster_faults.py::"
    "test_isr_below_its_minimum_is_refused_and_what_was_acknowledged_stays",
}

SAYINGS: Final = {
    # Of the table "What may stand in the way" of docs/CLI.md: a part of what it says, and where it is said.
    "is taken by process": f"{UP}test_port_that_is_taken_is_named_with_who_has_it",
    "is running on": f"{UP}test_second_one_on_a_directory_is_told_of_the_first",
    "and cannot become one of 1": f"{UP}test_three_nodes_are_a_cluster",
    "starting it again is of no use": f"{UP}test_process_that_cannot_start_is_given_up_with_its_words",
}

EXITS: Final = {
    # Of the table of exit codes of docs/CLI.md.
    "0": f"{VERBS}test_line_goes_in_and_comes_out",
    "1": f"{VERBS}test_topic_refusals",
    "2": "integration/test_cli_log.py::test_wrong_use_exits_2",
    "130": f"{VERBS}test_follows_what_comes_and_stops_on_ctrl_c",
    "141": f"{VERBS}test_reader_that_leaves_is_no_failure",
}

PUBLIC_DUNDERS: Final = (
    *("__enter__", "__aenter__", "__iter__", "__aiter__", "__next__", "__anext__", "__await__", "__len__"),
)


# --- nothing is left out --------------------------------------------------------------------------------------------


def methods(module: ModuleType, prefix: str) -> Iterator[str]:
    """Of all classes that are more than data: `Producer.send`."""
    for name in module.__all__:
        kind = getattr(module, name)
        if hasattr(kind, "__dataclass_fields__") or issubclass(kind, tuple):
            continue
        for method, value in inspect.getmembers(kind):
            ours = any(method in vars(each) for each in kind.__mro__ if each.__module__.startswith("quire"))
            is_public = not method.startswith("_") or method in PUBLIC_DUNDERS
            if ours and is_public and (callable(value) or isinstance(value, property)):
                yield f"{prefix}{name}.{method}"


def commands() -> Iterator[str]:
    for plugin in entry_points(group="quire.cli"):
        app: typer.Typer = plugin.load()
        command: Any = typer.main.get_command(app)
        within = getattr(command, "commands", None)
        if within is None or getattr(command, "invoke_without_command", False):
            yield plugin.name
        yield from (f"{plugin.name} {name}" for name in within or ())


def rows(document: str, heading: str) -> list[list[str]]:
    """The rows of the last table that comes before another heading, in the section."""
    text = (DOCS / document).read_text(encoding="utf-8").partition(f"\n## {heading}\n")[2].partition("\n## ")[0]
    lines = [line for line in text.splitlines() if line.startswith("|")]
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in lines]


def test_every_method_is_named() -> None:
    assert sorted([*methods(quire, ""), *methods(aio, "aio.")]) == sorted(METHODS)


def test_every_command_is_named() -> None:
    assert sorted(commands()) == sorted(COMMANDS)


def test_every_documented_error_is_named() -> None:
    documented = [row[0].strip("`") for row in rows("PROTOCOL.md", "Errors") if row[0].startswith("`")]
    assert documented == list(ERRORS) == list(ERRORS_BY_REASON)
    by_name = {kind.__name__: reason for reason, kind in ERRORS_BY_REASON.items()}
    of_sdk = [name for row in rows("SDK.md", "Errors") for name in re.findall(r"`(\w+Error)`", row[0])]
    assert of_sdk
    assert {by_name[name] for name in of_sdk} <= set(ERRORS)


def test_every_saying_and_exit_code_is_named() -> None:
    said = [row[0] for row in rows("CLI.md", "A cluster on this machine") if "`--" not in row[0]]
    said = [each for each in said if each.strip("-") and each not in ("option", "it says")]
    assert len(said) == len(SAYINGS)
    for each in said:
        assert sum(part in each for part in SAYINGS) == 1, each
    codes = [code for row in rows("CLI.md", "What holds for all") for code in re.findall(r"\d+", row[0])]
    assert sorted(codes) == sorted(EXITS)


# --- what is named is there, and does it ----------------------------------------------------------------------------


@pytest.mark.parametrize(("method", "name"), METHODS.items())
def test_method_is_used(method: str, name: str) -> None:
    shown.test(name)
    kind, _, called = method.rpartition(".")
    assert name.startswith("integration/")
    assert shown.calls_method(name, kind, called), f"{name} does not use {method}"


@pytest.mark.parametrize(("command", "name"), COMMANDS.items())
def test_command_is_run(command: str, name: str) -> None:
    shown.test(name)
    assert shown.runs_verb(name, *command.split()), f"{name} does not run 'quire {command}'"


@pytest.mark.parametrize(("reason", "name"), ERRORS.items())
def test_error_is_expected(reason: str, name: str) -> None:
    shown.test(name)
    kind = ERRORS_BY_REASON[reason].__name__
    assert shown.names_error(name, kind, reason), f"{name} does not expect {kind}"


@pytest.mark.parametrize(("part", "name"), SAYINGS.items())
def test_saying_is_expected(part: str, name: str) -> None:
    shown.test(name)
    assert shown.says(name, part), f"{name} does not expect {part!r}"


@pytest.mark.parametrize(("code", "name"), EXITS.items())
def test_exit_code_is_expected(code: str, name: str) -> None:
    shown.test(name)
    assert shown.expects_code(name, int(code)), f"{name} does not expect {code}"


# --- the check can fail ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "name",
    [
        "integration/test_nothing.py::test_acks",
        "integration/sdk_cluster.py::sdk_cluster",
        f"{PRODUCER}test_nothing",
        f"{PRODUCER}cluster",
    ],
)
def test_test_that_is_not_there_is_found(name: str) -> None:
    with pytest.raises(LookupError):
        shown.test(name)


@pytest.mark.parametrize(
    ("method", "name"),
    [
        ("Producer.flush", f"{PRODUCER}test_acks"),
        ("Consumer.close", f"{PRODUCER}test_closed_producer_says_so"),
        ("aio.Producer.close", f"{PRODUCER}test_closed_producer_says_so"),
        ("Producer.send", f"{AIO}test_delivery_is_awaited"),
        ("Delivery.result", f"{AIO}test_delivery_is_awaited"),
    ],
)
def test_method_that_is_not_used_is_found(method: str, name: str) -> None:
    kind, _, called = method.rpartition(".")
    assert not shown.calls_method(name, kind, called)


def test_error_and_command_that_are_not_expected_are_found() -> None:
    assert not shown.names_error(f"{PRODUCER}test_acks", "ProducerFencedError", "PRODUCER_FENCED")
    assert not shown.runs_verb(f"{VERBS}test_offsets", "topic", "delete")
    assert not shown.says(f"{UP}test_wrong_use", "is of no use")
