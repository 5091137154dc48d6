"""Files of a run: their types, and writing them so that each is there as a whole or not at all."""

from descend.records.folder import LOCK_FILE, PART, locked, of_disk, put, read_json, write_json

__all__ = ["LOCK_FILE", "PART", "locked", "of_disk", "put", "read_json", "write_json"]
