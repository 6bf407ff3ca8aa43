"""The pieces of `scripts/bench`: one function a figure, each next to what it is compared to.

figures.py    what a figure is, and the table
places.py     a scratch home, processes that never outlive the benchmark, corpora, the endpoint
endpoint.py   the model: a good draft after a fixed time, in a process of its own
measured.py   starts a command and says what it used, in a process of its own
sync_gap.py   a run that notes when its rows were on disk, in a process of its own
baselines.py  the article's loop, and bare httpx
runner.py     the runner: speed, memory, what survives
rehearsals.py `invoke rehearse`, the relay, an OpenSSH host
matching.py   the matcher
peers.py      promptfoo, inspect_ai, pyinfra, ansible: only with --peers
"""
