"""Image files that images and clips are read from: which formats, and what lies under their transparency."""

from PIL import Image

_SAFE = {"AVIF", "BMP", "DIB", "GIF", "JPEG", "JPEG2000", "PNG", "PPM", "QOI", "TIFF", "WEBP"}

SUFFIXES = frozenset(suffix for suffix, name in Image.registered_extensions().items() if name in _SAFE)
"""Suffixes of images, in lower case: those of Pillow's names for the formats in `FORMATS`."""

FORMATS = tuple(sorted(_SAFE.intersection(Image.OPEN)))
"""Pillow's names of the formats that are read: marked by their first bytes, and decoded by no other program."""

GROUND = "white"
"""The colour under transparent pixels."""


def opaque(image: Image.Image) -> Image.Image:
    """An image laid on the `GROUND`; as it is if it has no transparency."""
    if not image.has_transparency_data:
        return image
    image = image.convert("RGBA")
    return Image.alpha_composite(Image.new("RGBA", image.size, GROUND), image).convert("RGB")
