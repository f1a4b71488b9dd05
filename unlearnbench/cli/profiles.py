"""`unlearnbench profiles …`: evaluation rules by name."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

from unlearnbench.base.console import Console
from unlearnbench.cli.command import argument, command, new_group
from unlearnbench.cli.options import Json

if TYPE_CHECKING:
    from unlearnbench.api.profile import Profile

Name = Annotated[str, argument("NAME", "As `profiles list` has it, with changes: tofu+rows=80.")]

app = new_group("Show evaluation rules by name, and how they differ.")


@command(app, "list")
def list_profiles(as_json: Json = False) -> None:
    """List profiles, their ids, and where they differ from tofu."""
    from unlearnbench.config.profiles import PROFILES, TOFU, differences

    console = Console()
    if as_json:
        console.print_json([_profile_json(profile) for profile in PROFILES.values()])
        return
    rows = [
        (p.name, p.id, ", ".join(f"{c.key} {c.text}" for _, c in differences(TOFU, p)) or "-")
        for p in PROFILES.values()
    ]
    console.table(("profile", "id", "where it differs from tofu"), rows)


@command(app, "show")
def show_profile(name: Name, as_json: Json = False) -> None:
    """Show every choice of a profile with its meaning, and the rules common to all profiles."""
    from unlearnbench.config.profiles import COMMON, profile_named

    profile, console = profile_named(name), Console()
    if as_json:
        console.print_json(_profile_json(profile) | {"common": COMMON})
        return
    choices = [(choice.key, choice.text, choice.meaning) for choice in profile.choices()]
    console.table(("choice", "value", "meaning"), choices, f"profile {profile.id}")
    console.print()
    console.table(("in every profile", "rule"), list(COMMON.items()))


@command(app, "diff")
def diff_profiles(a: Name, b: Name) -> None:
    """Show only the choices in which two profiles differ.

    Examples:
      unlearnbench profiles diff tofu open-unlearning
    """
    from unlearnbench.config.profiles import differences, profile_named

    first, second = profile_named(a), profile_named(b)
    rows = [(x.key, x.text, y.text, x.meaning) for x, y in differences(first, second)]
    Console().table(("choice", first.id, second.id, "meaning"), rows)


def _profile_json(profile: Profile) -> dict[str, Any]:
    choices = [{"choice": c.key, "value": c.value, "meaning": c.meaning} for c in profile.choices()]
    return {"name": profile.name, "id": profile.id, "choices": choices}
