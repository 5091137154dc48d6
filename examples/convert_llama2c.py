"""A llama2.c checkpoint becomes a folder that transformers reads.

    python examples/convert_llama2c.py FOLDER OUT

FOLDER holds one checkpoint (``*.bin``, version 0: seven int32, then float32) and its tokenizer (``tok*.bin``).
"""

import sys
from pathlib import Path

from descend import InputError
from descend.models.llama2c import convert

if __name__ == "__main__":
    if len(sys.argv) != 3:
        raise SystemExit(__doc__)
    try:
        convert(Path(sys.argv[1]), Path(sys.argv[2]))
    except InputError as error:
        raise SystemExit(str(error)) from None
