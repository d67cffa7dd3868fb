"""Plans by measurement: a program is traced, candidates are measured, and what gains is kept.

1. `script` runs a program as ``python`` would; `loader` measures its DataLoaders.
2. `trace` records which calls have strategies, what they take, and who reads their results (`lineage`).
3. `measure` times originals, strategies and copies at the sizes that were seen, and verifies results.
4. `choose` finds the calls that are worth moving, as the shortest path over two states.
5. `compare` runs the program with and without a plan, in turns.
6. `search` does all of this; `table` and `page` show it, from the evidence that is written into the plan.
"""
