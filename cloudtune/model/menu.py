"""The names that help and completion show. They stand alone: a shell waits for them at each TAB."""

# The strategies that help and reference name; docs/papers.md has the others.
STRATEGIES = ("best", "sha", "asha", "hyperband", "bohb", "pbt")
# The same of allocators.
ALLOCATORS = ("same", "fluid")
PLANNERS = ("exact", "greedy", "naive", "static", "ilp")
