"""Files of a run: their place, and writing them so that they are there as a whole or not at all."""

from descend.records.folder import LOCK_FILE, PART, Records, aside, locked, of_disk, put, read_json, write_json

__all__ = ["LOCK_FILE", "PART", "Records", "aside", "locked", "of_disk", "put", "read_json", "write_json"]
