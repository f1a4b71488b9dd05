"""Epochs cover all rows, in an order from the seed alone."""

from unlearnbench.models.epoch_order import draw_epoch


def test_epochs_cover_the_rows_and_repeat_from_the_seed() -> None:
    items = draw_epoch(3, 1, 10, 4, 6)
    assert sorted(item.index for item in items) == list(range(10))
    partners = [item.retain for item in items]
    assert sorted(partners[:4]) == sorted(partners[4:8]) == [0, 1, 2, 3]
    assert items == draw_epoch(3, 1, 10, 4, 6)
    assert items != draw_epoch(3, 2, 10, 4, 6)
    assert {item.retain for item in draw_epoch(0, 1, 5, 0, 0)} == {0}
