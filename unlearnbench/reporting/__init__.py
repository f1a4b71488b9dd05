"""Reports: page, table and leaderboard made from records."""
