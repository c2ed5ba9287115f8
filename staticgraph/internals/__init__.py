"""What is used of torch that torch does not promise: names with an underscore, all in this room.

A release of torch may move or change any of them. So no other room says such a name (a test reads
every file), each stands here once under a name of ours, and each has a test of its own in
``tests/test_internals*.py``: on a new torch those tests say what moved, before anything else does.
The dry run's patches (``dryrun/stubs``) are the other such room; each of them says why it is there,
and the self-test of the dry run tries them all.

Files import what torch has loaded anyway; what takes seconds (Inductor) is imported when asked for.
"""
