from dataclasses import fields
from typing import Any

import pytest

from millgate.cli import demo, engine
from millgate.cli.flags import Flag, read_flags, taking
from millgate.config.units import parse_duration
from millgate.demos.overload import OverloadOptions
from millgate.servers.emulator.settings import EmulatorSettings


@pytest.mark.parametrize(
    ("flags", "record"), [(engine._FLAGS, EmulatorSettings), (demo._FLAGS, OverloadOptions)]
)
def test_every_flag_is_a_field_and_shows_its_default(flags: tuple[Flag, ...], record: type[Any]) -> None:
    defaults = {field.name: field.default for field in fields(record)}
    for each in flags:
        default = defaults[each.target]
        if each.kind == "text TIME":
            assert parse_duration(each.default) == default
        elif default not in {None, False, (), ""}:
            assert each.default == str(default)


def test_a_command_gets_what_was_given_by_its_targets() -> None:
    @taking(read_flags("--for | run_s | number | 5 | How long.\n--still | still | switch | | Or not at all."))
    def command(**given: Any) -> dict[str, Any]:
        return given

    assert command(flag__for=2.0, flag__still=None) == {"run_s": 2.0}
