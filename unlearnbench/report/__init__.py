"""Reports, tables, figures for papers, model cards, trackers and the leaderboard."""
