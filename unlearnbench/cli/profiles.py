"""`unlearnbench profiles …`: evaluation rules by name."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

from unlearnbench.base.console import Console
from unlearnbench.cli.command import argument, command, new_group
from unlearnbench.cli.options import Json, Wide

if TYPE_CHECKING:
    from unlearnbench.api.profile import Profile

Name = Annotated[str, argument("NAME", "Name of a profile, maybe with changes: tofu+rows=80.")]

app = new_group("Show evaluation rules by name, and how they differ.")


@command(app, "list")
def list_profiles(wide: Wide = False, as_json: Json = False) -> None:
    """List profiles; with --wide their ids, and where they differ from tofu.

    Examples:
      unlearnbench profiles list
      unlearnbench profiles list --wide
    """
    from unlearnbench.cli.catalogue import Entry, print_catalogue
    from unlearnbench.config.profiles import PROFILES, SUMMARIES, TOFU, differences

    console = Console()
    if as_json:
        console.print_json([_profile_json(profile) for profile in PROFILES.values()])
        return
    if wide:
        lines: list[tuple[str, ...]] = []
        for profile in PROFILES.values():
            changes = [f"{choice.key} {choice.text}" for _, choice in differences(TOFU, profile)]
            lines.append((profile.name, profile.id, ", ".join(changes) or "-"))
        console.table(("profile", "id", "where it differs from tofu"), lines, is_wide=True)
        return
    entries = [Entry(name, SUMMARIES[name]) for name in PROFILES]
    hint = "unlearnbench profiles show NAME has every rule; profiles diff A B, what differs."
    print_catalogue(entries, {}, hint, console)


@command(app, "show")
def show_profile(name: Name, as_json: Json = False) -> None:
    """Show every choice of a profile with its meaning, and the rules common to all profiles.

    Examples:
      unlearnbench profiles show open-unlearning
      unlearnbench profiles show tofu+rows=80
    """
    from unlearnbench.config.profiles import COMMON, SUMMARIES, profile_named

    console = Console()
    profile = profile_named(name)
    if as_json:
        console.print_json(_profile_json(profile) | {"common": COMMON})
        return
    choices = [(choice.key, choice.text, choice.meaning) for choice in profile.choices()]
    title = f"profile {profile.id}: {SUMMARIES[profile.name]}"
    console.table(("choice", "value", "meaning"), choices, title, flowing={"value", "meaning"})
    console.print()
    console.table(("in every profile", "rule"), list(COMMON.items()), flowing={"rule"})
    console.print("\nin a config:")
    console.print(f"  evaluation:\n    profile: {profile.name}")


@command(app, "diff")
def diff_profiles(a: Name, b: Name) -> None:
    """Show only the choices in which two profiles differ.

    Examples:
      unlearnbench profiles diff tofu open-unlearning
    """
    from unlearnbench.config.profiles import differences, profile_named

    first = profile_named(a)
    second = profile_named(b)
    lines = [
        (choice.key, choice.text, other.text, choice.meaning)
        for choice, other in differences(first, second)
    ]
    console = Console()
    console.print(f"{first.id} against {second.id}")
    # The names without the hash: `tofu+rows=80` of `tofu+rows=80@cafd1a53`.
    first_name = first.id.partition("@")[0]
    second_name = second.id.partition("@")[0]
    columns = ("choice", first_name, second_name, "meaning")
    console.table(columns, lines, flowing={first_name, second_name, "meaning"})


def _profile_json(profile: Profile) -> dict[str, Any]:
    """Return a profile as JSON, with all of its choices."""
    choices = [
        {"choice": choice.key, "value": choice.value, "meaning": choice.meaning}
        for choice in profile.choices()
    ]
    return {"name": profile.name, "id": profile.id, "choices": choices}
