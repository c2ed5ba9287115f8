"""All uses of private torch names in one place.

A torch release may move or change any of them. So no other module uses such a name (a test reads
every file); each appears here exactly once, under a name of this library, with its own test in
``tests/test_internals*.py``: on a new torch those tests report what moved before anything else
fails. The patches of the dry run (``dryrun/patches.py``) are the only other such place; each of
them says why it is there, and the self-test of the dry run exercises them all.

Modules import only what torch has loaded anyway; imports that take seconds (Inductor) are made on
first use.
"""
