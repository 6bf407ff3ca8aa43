"""WHAT the box runs.

Everything here travels to the box inside one zipapp. It needs Python 3.10, the standard library,
httpx and sqlite-utils, holds no compiled file, and imports no sibling folder: the ground floor.
"""
