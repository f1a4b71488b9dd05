"""An independent recomputation of everything that the views of a sweep's folder say.

`claims.Claims.of(folder)` reads the plan and the records of a folder, and computes from the
observations what page, tables, tracker and terminal have to say. Nothing here imports
`unlearnbench`: definitions are those of the papers and of the documentation, and they are
written again, with numpy and scipy, in a structure of their own. A disagreement with the product
is a fault of one of the two.

Order of the files: `read` (folder → records), `numbers` (observations → metrics), `settings`
(which runs are seeds of one setting), `means`, `choices`, `places`, `attackers` (which attacker of
a search is reported), `lasting`, `sentences`, and `claims`, which puts them together.
"""
