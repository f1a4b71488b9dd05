"""Ranks of a group are numbered by machine."""

from unlearnbench.sweep.worker_group import rank_variables


def test_ranks_are_numbered_by_machine() -> None:
    places = [("a", "10.0.0.1"), ("b", "10.0.0.2"), ("a", "10.0.0.1"), ("b", "10.0.0.2")]
    found = rank_variables(places, 29500)
    assert [one["RANK"] for one in found] == ["0", "1", "2", "3"]
    assert [one["LOCAL_RANK"] for one in found] == ["0", "0", "1", "1"]
    assert {one["LOCAL_WORLD_SIZE"] for one in found} == {"2"}
    assert {(one["MASTER_ADDR"], one["MASTER_PORT"]) for one in found} == {("10.0.0.1", "29500")}
