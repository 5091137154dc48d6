"""Video denoising: the task, and clips on disk or generated, as windows of patches."""

from descend.tasks.video.datasets import VideoData, cached, dataset_name, default_cache_dir, load_test, load_video
from descend.tasks.video.decoding import SIZE, array_frames
from descend.tasks.video.scenes import generate_scenes
from descend.tasks.video.sources import Clip, find_clips
from descend.tasks.video.windows import PATCH, VideoDenoising, VideoWindows, patchify, unpatchify

__all__ = [
    "PATCH",
    "SIZE",
    "Clip",
    "VideoData",
    "VideoDenoising",
    "VideoWindows",
    "array_frames",
    "cached",
    "dataset_name",
    "default_cache_dir",
    "find_clips",
    "generate_scenes",
    "load_test",
    "load_video",
    "patchify",
    "unpatchify",
]
