"""Layouts on disk and what is wrong with them: real files where there are some, generated ones for damage."""

import io
import shutil
import struct
from pathlib import Path

import av
import numpy as np
import pytest
from PIL import Image

from descend.errors import InputError
from descend.tasks.video import SIZE, Clip, find_clips, has_sides
from tests.support.sources import add_box, box, trim, write_frames, write_video


def cut(file: Path, share: float) -> None:
    content = file.read_bytes()
    file.write_bytes(content[: int(len(content) * share)])


def decoded(clip: Clip) -> np.ndarray:
    return np.stack(list(clip.frames()))


# --- the layouts that people have, on the real files


@pytest.mark.parametrize(
    ("path", "split", "expected"),
    [
        ("UCSD_Anomaly_Dataset.v1p2/UCSDped2", "train", {"training/Train001": 60}),
        ("UCSD_Anomaly_Dataset.v1p2/UCSDped1", "test", {f"testing/Test{n:03}": 60 for n in range(1, 13)}),
        ("ped2", "train", {f"training/{n:02}": 50 for n in range(1, 11)}),
        ("ped2", "test", {f"testing/{n:02}": 50 for n in range(1, 8)}),
        ("Avenue Dataset", "train", {"training/16": 244}),
        (
            "Avenue Dataset",
            "test",
            {"testing/08": 36, "testing/17": 426, "testing/18": 294, "testing/20": 273},
        ),
        ("avenue", "train", {"training/10": 120}),
        (
            "shanghaitech",
            "test",
            {"testing/01_0014": 265, "testing/01_0015": 433, "testing/12_0142-12_0143": 866},
        ),
        ("shanghaitech/testing/frames", None, {"01_0014": 40}),
        ("ped2/testing/frames/03", None, {"03": 50}),
        ("Avenue Dataset/testing_videos/08.avi", None, {"08": 36}),
    ],
)
def test_real_layouts(real_data, path, split, expected):
    clips = find_clips(real_data / "video" / path, split)
    assert {clip.name: clip.announced() for clip in clips} == expected
    assert [clip.name for clip in clips] == sorted(expected)


def test_real_formats_decode_to_as_many_frames_as_they_announce(real_data):
    for path in (
        "UCSD_Anomaly_Dataset.v1p2/UCSDped1/Test/Test001",
        "Avenue Dataset/testing_videos/08.avi",
        "Avenue Dataset/training_videos",
        "avenue/training/frames/10",
        "shanghaitech/testing/videos/01_0014.mp4",
    ):
        (clip,) = find_clips(real_data / "video" / path, None)
        frames = decoded(clip)
        assert frames.shape == (clip.announced(), SIZE, SIZE)
        assert frames.dtype == np.uint8
        assert 20 < frames.std() < 80


def test_the_same_clip_from_two_formats(real_data):
    ped2 = decoded(find_clips(real_data / "video/ped2", "train")[0])
    ucsd = decoded(find_clips(real_data / "video/UCSD_Anomaly_Dataset.v1p2/UCSDped2", "train")[0])
    error = ped2.astype(float) - ucsd[:50]
    assert np.sqrt((error**2).mean()) < 2  # jpg's own
    shifted = ped2.astype(float) - ucsd[1:51]
    assert np.sqrt((shifted**2).mean()) > 4  # so frames are in order

    (jpg,) = find_clips(real_data / "video/shanghaitech/testing/frames", None)
    (mp4,) = find_clips(real_data / "video/shanghaitech/testing/videos/01_0014.mp4", None)
    difference = decoded(jpg).astype(float) - decoded(mp4)[:40]
    assert np.sqrt((difference**2).mean()) < 2
    assert abs(difference.mean()) < 1.5  # a video's limited range is stretched to the full one


def test_real_one_sided_data_says_what_to_do(real_data):
    with pytest.raises(InputError, match=r"testing.*training.*/testing/videos"):
        find_clips(real_data / "video/shanghaitech", "train")
    with pytest.raises(InputError, match=r"UCSDped1, .*UCSDped2"):
        find_clips(real_data / "video/UCSD_Anomaly_Dataset.v1p2", None)
    with pytest.raises(InputError, match=r"/UCSD_.*UCSDped1, .*UCSDped2, .*/avenue, .*/ped2"):
        find_clips(real_data / "video", None)


def test_real_files_cut_short(real_data, tmp_path):
    avi = shutil.copyfile(real_data / "video/Avenue Dataset/testing_videos/08.avi", tmp_path / "08.avi")
    cut(avi, 0.9)
    with pytest.raises(InputError, match=r"08\.avi.*36 frames"):
        decoded(Clip("08", (avi,)))
    tif = real_data / "video/UCSD_Anomaly_Dataset.v1p2/UCSDped2/Train/Train001/001.tif"
    for share in (0.999, 0.5, 0.0):
        short = shutil.copyfile(tif, tmp_path / "001.tif")
        cut(short, share)
        with pytest.raises(InputError, match=r"001\.tif"):
            decoded(Clip("Train001", (short,)))


# --- what may lie beside the clips


def test_ucsd_masks_and_the_archives_litter_are_left_out(tmp_path):
    write_frames(tmp_path / "Test/Test001", suffix=".tif")
    (tmp_path / "Test/Test001/._0.tif").write_bytes(b"litter")
    write_frames(tmp_path / "Test/Test001_gt", suffix=".bmp")
    (tmp_path / "Test/.DS_Store").write_bytes(b"litter")
    write_frames(tmp_path / "Test/@eaDir")
    (tmp_path / "Test/__MACOSX/Test001").mkdir(parents=True)
    (tmp_path / "Test/UCSDped1.m").write_text("TestVideoFile = {};")
    (clip,) = find_clips(tmp_path, "test")
    assert clip.name == "testing/Test001"
    assert [file.name for file in clip.files] == ["0.tif", "1.tif", "2.tif"]


def test_numbers_sort_as_numbers(tmp_path):
    write_frames(tmp_path / "clip", frames=12, suffix=".png")
    for name in ("b2", "b10"):
        shutil.copy(tmp_path / "clip/1.png", tmp_path / f"clip/{name}.png")
    (clip,) = find_clips(tmp_path / "clip", None)
    assert [file.stem for file in clip.files] == [*map(str, range(12)), "b2", "b10"]


def test_upstream_shanghaitech_has_training_videos_and_testing_frames(tmp_path):
    write_video(tmp_path / "training/videos/01_001.avi")
    write_frames(tmp_path / "testing/frames/01_0014")
    assert has_sides(tmp_path)
    assert find_clips(tmp_path, "train")[0].files[0].name == "01_001.avi"
    assert [clip.name for clip in find_clips(tmp_path, "test")] == ["testing/01_0014"]


def test_frames_replace_videos_only_if_they_are_all_there(tmp_path):
    for name in ("01", "02"):
        write_video(tmp_path / f"training/videos/{name}.mp4", frames=2)
    write_frames(tmp_path / "training/frames/01")
    assert [clip.files[0].suffix for clip in find_clips(tmp_path, "train")] == [".mp4", ".mp4"]
    write_frames(tmp_path / "training/frames/02")
    assert [clip.files[0].suffix for clip in find_clips(tmp_path, "train")] == [".jpg", ".jpg"]


@pytest.mark.parametrize(
    ("train", "test"),
    [
        ("train", "test"),
        ("Train", "Test"),
        ("TRAIN", "TEST"),
        ("training", "testing"),
        ("Training", "Testing"),
        ("Training_Videos", "testing_videos"),
        ("train", "Testing"),
    ],
)
def test_sides_in_any_case(tmp_path, train, test):
    write_frames(tmp_path / train / "01")
    write_frames(tmp_path / test / "frames/02")
    assert has_sides(tmp_path)
    for split, name in (("train", "training/01"), ("test", "testing/02")):
        (clip,) = find_clips(tmp_path, split)
        assert clip.name == name and len(clip.files) == 3


def test_a_root_of_data_sets_names_the_choices(tmp_path):
    for name in ("UCSD/ped1", "UCSD/ped2", "avenue"):
        write_frames(tmp_path / name / "Test/01")
    (tmp_path / "notes").mkdir()
    inner, outer = tmp_path / "UCSD", tmp_path
    choices = f"{inner}/ped1, {inner}/ped2"
    with pytest.raises(InputError, match=rf"{inner}.*: {choices}$"):
        find_clips(inner, None)
    with pytest.raises(InputError, match=rf": {choices}, {outer}/avenue$"):
        find_clips(outer, None)


def test_videos_beside_clip_folders_are_refused(tmp_path):
    write_video(tmp_path / "testing/08.avi", frames=2)
    (tmp_path / "testing/labels").mkdir()  # no clip, as it holds no images
    assert [clip.name for clip in find_clips(tmp_path, "test")] == ["testing/08"]
    write_frames(tmp_path / "testing/09")
    for path, split in ((tmp_path, "test"), (tmp_path / "testing", None)):
        with pytest.raises(InputError, match=r"testing.*\(08\.avi\).*\(09\)"):
            find_clips(path, split)  # type: ignore[arg-type]
    assert [clip.name for clip in find_clips(tmp_path / "testing/09", None)] == ["09"]


def test_a_folder_of_videos_needs_no_sides(tmp_path):
    for name in ("b", "a"):
        write_video(tmp_path / f"{name}.avi", frames=4)
    (tmp_path / "notes.txt").write_text("what the camera saw")
    assert not has_sides(tmp_path)
    assert [clip.name for clip in find_clips(tmp_path, None)] == ["a", "b"]
    assert [clip.name for clip in find_clips(tmp_path / "b.avi", None)] == ["b"]


def test_videos_in_sub_folders_are_read_with_their_folders_names(tmp_path):
    for name in ("a.mp4", "holiday/2.avi", "holiday/10.avi", "holiday/sea/9.MP4", "z.mov"):
        write_video(tmp_path / name, frames=2)
    (tmp_path / "holiday/notes.txt").write_text("what the camera saw")
    (tmp_path / "empty").mkdir()
    names = ["a", "holiday/2", "holiday/10", "holiday/sea/9", "z"]
    assert [clip.name for clip in find_clips(tmp_path, None)] == names
    (tmp_path / "a.mp4").unlink()
    (tmp_path / "z.mov").unlink()
    (tmp_path / "holiday/again").symlink_to(tmp_path)  # a link that leads back up
    assert [clip.name for clip in find_clips(tmp_path, None)] == names[1:-1]


def test_videos_below_folders_of_frames_are_refused(tmp_path):
    write_video(tmp_path / "clips/a.mp4", frames=2)
    write_frames(tmp_path / "frames_flat")
    (tmp_path / "also_empty").mkdir()
    with pytest.raises(InputError, match=r"both videos \(clips/a\.mp4\) and folders of frames \(frames_flat\)"):
        find_clips(tmp_path, None)
    write_video(tmp_path / "frames_flat/source/a.mp4", frames=2)
    with pytest.raises(InputError, match=r"frames_flat holds both videos \(source/a\.mp4\)"):
        find_clips(tmp_path / "frames_flat", None)
    write_video(tmp_path / "set/b.mp4", frames=2)
    write_video(tmp_path / "set/ped/test/c.mp4", frames=2)
    with pytest.raises(InputError, match=r"not one data set.*set/ped"):
        find_clips(tmp_path / "set", None)


# --- what a frame is


def test_colour_becomes_bt601_luma_from_images_and_videos(tmp_path):
    colours = {"red": (255, 0, 0), "green": (0, 255, 0), "blue": (0, 0, 255), "white": (255, 255, 255)}
    for name, colour in colours.items():
        Image.new("RGB", (32, 24), colour).save(tmp_path / f"{name}.png")
        with av.open(str(tmp_path / f"{name}.avi"), "w") as container:
            stream = container.add_stream("mpeg4", rate=25)
            stream.width, stream.height, stream.pix_fmt = 32, 32, "yuv420p"
            picture = av.VideoFrame.from_ndarray(np.full((32, 32, 3), colour, np.uint8), format="rgb24")
            container.mux(stream.encode(picture))
            container.mux(stream.encode(None))
        luma = np.dot((0.299, 0.587, 0.114), colour)
        assert abs(decoded(Clip("", (tmp_path / f"{name}.png",))).mean() - luma) < 1
        assert abs(decoded(Clip("", (tmp_path / f"{name}.avi",))).mean() - luma) < 3  # limited range, 8 bits


def test_video_frames_come_in_order(tmp_path):
    (clip,) = find_clips(write_video(tmp_path / "clip.avi"), None)
    levels = decoded(clip)[:, :60].mean((1, 2))
    assert np.abs(levels - 20 * np.arange(12)).max() < 6


# --- files that hold more, or less, than their first stream or page


@pytest.mark.parametrize(
    ("parts", "frames"),
    [
        ([(0, 39)], range(40)),
        ([(13, 39)], range(13, 40)),  # as ffmpeg -ss … -c copy leaves it: from the last key frame on
        ([(0, 9)], range(10)),
        ([(13, 20)], range(13, 21)),
        ([(0, 4), (30, 35)], [*range(5), *range(30, 36)]),
    ],
)
def test_a_trimmed_video_is_shorter_and_not_truncated(tmp_path, parts, frames):
    whole = write_video(tmp_path / "whole.mp4", frames=40)
    file = trim(Path(shutil.copyfile(whole, tmp_path / "trimmed.mp4")), *parts)
    np.testing.assert_array_equal(decoded(Clip("", (file,))), decoded(Clip("", (whole,)))[list(frames)])


def test_a_trimmed_video_that_is_cut_off_is_refused(tmp_path):
    file = trim(write_video(tmp_path / "a.mp4", frames=40), (13, 39))
    content = file.read_bytes()
    place = content.index(b"mdat") + 4
    half = (content.index(b"moov") - 4 - place) // 2
    file.write_bytes(content[: place + half] + bytes(half) + content[place + 2 * half :])
    with pytest.raises(InputError, match=r"a\.mp4.*(truncated|decoded)"):
        decoded(Clip("", (file,)))


def test_dropped_frames_of_an_avi_are_no_truncation(tmp_path):
    with av.open(str(tmp_path / "a.avi"), "w") as container:
        stream = container.add_stream("mpeg4", rate=25)
        stream.width, stream.height, stream.pix_fmt = 64, 48, "yuv420p"
        for k in range(20):
            picture = av.VideoFrame.from_ndarray(np.full((48, 64, 3), 10 * k, np.uint8), format="rgb24")
            picture.pts = 2 * k  # every other one is empty
            container.mux(stream.encode(picture))
        container.mux(stream.encode(None))
    clip = Clip("", (tmp_path / "a.avi",))
    assert clip.announced() == 39 and len(decoded(clip)) == 20


def test_the_video_is_read_and_not_its_cover(tmp_path):
    plain = write_video(tmp_path / "plain.mp4")
    covered = Path(shutil.copyfile(plain, tmp_path / "covered.mp4"))
    picture = io.BytesIO()
    Image.new("L", (32, 32)).save(picture, "JPEG")
    cover = box(b"ilst", box(b"covr", box(b"data", struct.pack(">II", 13, 0) + picture.getvalue())))
    handler = box(b"hdlr", bytes(8) + b"mdirappl" + bytes(9))
    add_box(covered, (b"moov",), box(b"udta", box(b"meta", bytes(4) + handler + cover)), first=True)
    with av.open(str(covered)) as container:
        assert [stream.codec_context.name for stream in container.streams.video] == ["mjpeg", "mpeg4"]
    clip = Clip("", (covered,))
    assert clip.size() == (64, 48) and clip.announced() == 12
    np.testing.assert_array_equal(decoded(clip), decoded(Clip("", (plain,))))


@pytest.mark.parametrize(("marked", "level"), [((True, False), 50), ((False, True), 200), ((True, True), None)])
def test_of_two_videos_the_default_is_read_or_none(tmp_path, marked, level):
    file = tmp_path / "two.mkv"
    with av.open(str(file), "w") as container:
        streams = [container.add_stream("mpeg4", rate=25) for _ in marked]
        for stream, default in zip(streams, marked, strict=True):
            stream.width, stream.height, stream.pix_fmt = 64, 48, "yuv420p"
            stream.disposition = av.stream.Disposition.default if default else av.stream.Disposition(0)
        for stream, grey in zip(streams, (50, 200), strict=True):
            for k in range(3):
                picture = av.VideoFrame.from_ndarray(np.full((48, 64, 3), grey, np.uint8), format="rgb24")
                picture.pts = k
                container.mux(stream.encode(picture))
            container.mux(stream.encode(None))
    if level is None:
        with pytest.raises(InputError, match=r"two\.mkv holds 2 videos and marks 2 as its default"):
            decoded(Clip("", (file,)))
    else:
        assert abs(decoded(Clip("", (file,))).mean() - level) < 3


UPRIGHT = [  # what each of EXIF's orientations does, and the display matrix (a, b, c, d) of the same turn
    (1, lambda shown: shown, (1, 0, 0, 1)),
    (2, lambda shown: shown[:, ::-1], (-1, 0, 0, 1)),
    (3, lambda shown: shown[::-1, ::-1], (-1, 0, 0, -1)),
    (4, lambda shown: shown[::-1], (1, 0, 0, -1)),
    (5, lambda shown: shown.T, (0, 1, 1, 0)),
    (6, lambda shown: np.rot90(shown, -1), (0, 1, -1, 0)),
    (7, lambda shown: np.rot90(shown, 2).T, (0, -1, -1, 0)),
    (8, lambda shown: np.rot90(shown), (0, -1, 1, 0)),
]


@pytest.mark.parametrize(("orientation", "upright", "matrix"), UPRIGHT)
def test_frames_are_upright_as_exif_and_the_display_matrix_say(tmp_path, orientation, upright, matrix):
    size = (64, 48) if orientation < 5 else (48, 64)
    coded = np.full((48, 64), 20, np.uint8)  # bright on top, grey at the left: no turn leaves it as it is
    coded[:24], coded[:, :16] = 200, 110
    expected = np.asarray(Image.fromarray(np.ascontiguousarray(upright(coded))).resize((SIZE, SIZE), 2)).astype(float)
    exif = Image.Exif()
    exif[0x112] = orientation
    for suffix in (".png", ".jpg", ".tif"):
        Image.fromarray(coded).save(tmp_path / f"photo{suffix}", exif=exif)
        clip = Clip("", (tmp_path / f"photo{suffix}",))
        assert clip.size() == size and np.abs(decoded(clip)[0] - expected).mean() < 2, suffix
    file = tmp_path / "phone.mp4"
    with av.open(str(file), "w") as container:
        stream = container.add_stream("mpeg4", rate=25)
        stream.width, stream.height, stream.pix_fmt = 64, 48, "yuv420p"
        container.mux(stream.encode(av.VideoFrame.from_ndarray(coded, format="gray").reformat(format="yuv420p")))
        container.mux(stream.encode(None))
    content = bytearray(file.read_bytes())
    a, b, c, d = (value << 16 for value in matrix)
    struct.pack_into(">9i", content, content.index(b"tkhd") + 44, a, b, 0, c, d, 0, 0, 0, 1 << 30)
    file.write_bytes(content)
    clip = Clip("", (file,))
    assert clip.size() == size and np.abs(decoded(clip)[0] - expected).mean() < 3


def test_a_video_that_is_shown_aslant_is_refused_and_damaged_exif_costs_nothing(tmp_path):
    file = write_video(tmp_path / "aslant.mp4")
    content = bytearray(file.read_bytes())
    turn = (46341, 46341, 0, -46341, 46341, 0, 0, 0, 1 << 30)
    struct.pack_into(">9i", content, content.index(b"tkhd") + 44, *turn)
    file.write_bytes(content)
    with pytest.raises(InputError, match=r"aslant\.mp4.*45°.*quarter turns"):
        decoded(Clip("", (file,)))
    Image.new("L", (24, 16), 77).save(tmp_path / "odd.jpg", exif=b"Exif\0\0not a TIFF at all")
    assert decoded(Clip("", (tmp_path / "odd.jpg",))).mean() == 77


def pages(count: int, size: tuple[int, int] = (24, 16)) -> list[Image.Image]:
    return [Image.new("L", size, 10 * k + 5) for k in range(count)]


@pytest.mark.parametrize(("name", "options"), [("a.tif", {}), ("a.tif", {"compression": "tiff_lzw"}), ("a.png", {})])
def test_every_page_is_a_frame_and_every_stack_a_clip(tmp_path, capfd, name, options):
    first, *others = pages(6)
    (tmp_path / "stacks").mkdir()
    for number in (10, 9):
        file = tmp_path / "stacks" / f"{number}{name}"
        first.save(file, save_all=True, append_images=others, **options)
    clips = [*find_clips(tmp_path / "stacks", None), *find_clips(tmp_path, None), *find_clips(file, None)]
    assert [clip.name for clip in clips] == ["9a", "10a", "stacks/9a", "stacks/10a", "9a"]
    for clip in clips:
        assert clip.announced() == 6 and clip.size() == (24, 16)
        assert decoded(clip)[:, 0, 0].tolist() == [5, 15, 25, 35, 45, 55]
    content = file.read_bytes()
    end = content.rindex(b"IEND") - 16 if name == "a.png" else len(content) - 30
    for size in range(end // 2, end, 7):  # a list of pages that breaks off ends no clip early
        file.write_bytes(content[:size])
        with pytest.raises(InputError, match=rf"9{name}"):
            decoded(Clip("", (file,)))


def test_what_is_in_an_image_and_no_frame_is_left_out_or_refused(tmp_path):
    shown, *others = pages(4)
    shown.save(tmp_path / "still_first.png", save_all=True, append_images=others, default_image=True)
    thumbnail, mask = Image.new("L", (6, 4)), Image.new("L", (24, 16))
    thumbnail.encoderinfo, mask.encoderinfo = {"tiffinfo": {254: 1}}, {"tiffinfo": {254: 4}}
    shown.save(tmp_path / "with_thumbnail.tif", save_all=True, append_images=[thumbnail, others[0], mask])
    shown.save(tmp_path / "with_preview.jpg", "MPO", save_all=True, append_images=[thumbnail])
    for name, levels in (("still_first.png", [15, 25, 35]), ("with_thumbnail.tif", [5, 15]), ("with_preview.jpg", [5])):
        clip = Clip("", (tmp_path / name,))
        assert clip.announced() == len(levels) and decoded(clip)[:, 0, 0].tolist() == levels
    shown.save(tmp_path / "stereo.jpg", "MPO", save_all=True, append_images=others[:1])
    with pytest.raises(InputError, match=r"stereo\.jpg holds 2 pictures; expected one"):
        decoded(Clip("", (tmp_path / "stereo.jpg",)))
    shown, *others = pages(4)
    (tmp_path / "mixed").mkdir()
    shown.save(tmp_path / "mixed/0.tif")
    shown.save(tmp_path / "mixed/1.tif", save_all=True, append_images=others)
    (clip,) = find_clips(tmp_path / "mixed", None)
    with pytest.raises(InputError, match=r"mixed/1\.tif has 4 pages; expected one, because 0\.tif has one"):
        decoded(clip)


# --- bad input: one clear error that names the file


def test_missing_empty_and_foreign_folders(tmp_path):
    with pytest.raises(InputError, match=r"nowhere.*exist"):
        find_clips(tmp_path / "nowhere", None)
    with pytest.raises(InputError, match="empty folder"):
        find_clips(tmp_path, None)
    (tmp_path / "text").mkdir()
    (tmp_path / "text/review.txt").write_text("a film")
    with pytest.raises(InputError, match=r"(?s)UCSD.*Avenue.*ShanghaiTech"):
        find_clips(tmp_path / "text", None)
    with pytest.raises(InputError, match=r"review\.txt"):
        find_clips(tmp_path / "text/review.txt", None)
    with pytest.raises(InputError, match=r"training.*testing"):
        find_clips(tmp_path / "text", "train")
    (tmp_path / "set/training/frames").mkdir(parents=True)
    with pytest.raises(InputError, match=r"training/frames"):
        find_clips(tmp_path / "set", "train")
    with pytest.raises(InputError, match=r"training side.*one collection"):
        find_clips(tmp_path / "set", None)


def test_a_clip_without_frames(tmp_path):
    write_frames(tmp_path / "training/frames/01")
    (tmp_path / "training/frames/02").mkdir()
    with pytest.raises(InputError, match=r"training/frames/02"):
        find_clips(tmp_path, "train")


@pytest.mark.parametrize("share", [0.97, 0.5, 0.2, 0.01, 0.0])
@pytest.mark.parametrize(("name", "options"), [("a.avi", {}), ("a.mp4", {}), ("b.mp4", {"movflags": "faststart"})])
def test_truncated_videos(tmp_path, capfd, name, options, share):
    file = write_video(tmp_path / name, frames=40, **options)
    assert len(decoded(Clip("whole", (file,)))) == 40
    if name == "a.avi":  # behind its frames lies an index, whose loss costs nothing
        share *= 0.97
    cut(file, share)
    with pytest.raises(InputError, match=rf"{name}.*(truncated|decoded)"):
        decoded(Clip("short", (file,)))
    assert capfd.readouterr() == ("", "")


def test_a_video_file_without_pictures(tmp_path):
    (tmp_path / "text.avi").write_text("not a video at all, whatever its name says" * 50)
    with pytest.raises(InputError, match=r"text\.avi"):
        Clip("text", (tmp_path / "text.avi",)).announced()
    with av.open(str(tmp_path / "sound.mp4"), "w") as container:
        stream = container.add_stream("aac", rate=8000)
        sound = av.AudioFrame.from_ndarray(np.zeros((1, 1024), np.float32), format="fltp", layout="mono")
        sound.rate = 8000
        container.mux(stream.encode(sound))
        container.mux(stream.encode(None))
    with pytest.raises(InputError, match=r"sound\.mp4.*no video stream"):
        Clip("sound", (tmp_path / "sound.mp4",)).announced()


@pytest.mark.parametrize("share", [0.9, 0.5, 0.1, 0.0])
@pytest.mark.parametrize(
    ("suffix", "options"), [(".jpg", {}), (".tif", {}), (".tif", {"compression": "tiff_lzw"}), (".png", {})]
)
def test_truncated_images(tmp_path, recwarn, suffix, options, share):
    folder = write_frames(tmp_path / "clip", suffix=suffix, size=(80, 60), **options)
    (clip,) = find_clips(folder, None)
    assert decoded(clip).shape == (3, SIZE, SIZE)
    cut(folder / f"1{suffix}", share)
    with pytest.raises(InputError, match=rf"clip/1\{suffix}"):
        decoded(clip)
    assert not [w for w in recwarn if issubclass(w.category, UserWarning)]


def test_frames_of_mixed_size(tmp_path):
    write_frames(tmp_path / "clip")
    Image.new("L", (24, 18)).save(tmp_path / "clip/2.jpg")
    (clip,) = find_clips(tmp_path / "clip", None)
    with pytest.raises(InputError, match=r"clip/2\.jpg.*24x18.*0\.jpg.*24x16"):
        decoded(clip)


def test_frames_of_more_than_8_bits(tmp_path):
    (tmp_path / "clip").mkdir()
    Image.fromarray(np.full((16, 16), 4000, np.uint16)).save(tmp_path / "clip/0.png")
    with pytest.raises(InputError, match=r"0\.png.*I;16.*8 bits"):
        decoded(find_clips(tmp_path / "clip", None)[0])
