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
        rows = [
            (p.name, p.id, ", ".join(f"{c.key} {c.text}" for _, c in differences(TOFU, p)) or "-")
            for p in PROFILES.values()
        ]
        console.table(("profile", "id", "where it differs from tofu"), rows, is_wide=True)
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

    profile, console = profile_named(name), Console()
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

    first, second = profile_named(a), profile_named(b)
    rows = [(x.key, x.text, y.text, x.meaning) for x, y in differences(first, second)]
    console = Console()
    console.print(f"{first.id} against {second.id}")
    of_first, of_second = (profile.id.partition("@")[0] for profile in (first, second))
    columns = ("choice", of_first, of_second, "meaning")
    console.table(columns, rows, flowing={of_first, of_second, "meaning"})


def _profile_json(profile: Profile) -> dict[str, Any]:
    choices = [{"choice": c.key, "value": c.value, "meaning": c.meaning} for c in profile.choices()]
    return {"name": profile.name, "id": profile.id, "choices": choices}
