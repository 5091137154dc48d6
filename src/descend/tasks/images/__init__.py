"""Image classification: the task, and data from disk, from scikit-learn or a generator.

The task loads at once. Code that reads images loads on first use: it needs the extra `image`.
"""

from typing import TYPE_CHECKING

from descend.extras import lazy_names
from descend.tasks.images.classification import ImageClassification

if TYPE_CHECKING:
    from descend.tasks.images.sources import Images, read_images

__all__ = ["ImageClassification", "Images", "read_images"]

__getattr__ = lazy_names("descend.tasks.images", {"sources": ("Images", "read_images")})
