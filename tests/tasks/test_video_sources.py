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
from descend.tasks.video import SIZE, Clip, find_clips
from descend.tasks.video.sources import sides_of
from tests.support.sources import add_box, box, encode, grow, trim, write_frames, write_video


def cut(file: Path, share: float) -> None:
    content = file.read_bytes()
    file.write_bytes(content[: int(len(content) * share)])


def decoded(file: Clip | Path) -> np.ndarray:
    return np.stack(list((file if isinstance(file, Clip) else Clip("", (file,))).frames()))


def plain(*levels: float | tuple[int, int, int]) -> list[np.ndarray]:
    return [np.full((48, 64, 3), level, np.uint8) for level in levels]


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


# --- trees of files


LITTER = (
    "Test/Test001/{0,1,2}.tif Test/Test001/._0.tif Test/Test001_gt/0.bmp Test/.DS_Store Test/@eaDir/0.jpg "
    "Test/__MACOSX/Test001/ Test/UCSDped1.m"
)
VIDEOS = "a.mp4 holiday/{2,10}.avi holiday/sea/9.MP4 holiday/notes.txt empty/ z.mov"
SHANGHAI = "training/videos/01_001.avi testing/frames/01_0014/0.jpg"
DAVIS = (
    "JPEGImages/480p/{bear,blackswan,camel,dog}/00000.jpg JPEGImages/Full-Resolution/dog/0.jpg "
    "Annotations/480p/{bear,blackswan,camel,dog}/00000.png "
)
ROOT = "UCSD/ped{1,2}/Test/01/0.jpg avenue/Test/01/0.jpg notes/"
BOTH = "testing/08.avi testing/labels/ testing/09/0.jpg"
SOURCE = "frames_flat/0.jpg frames_flat/source/a.mp4"


@pytest.mark.parametrize(
    ("tree", "path", "split", "clips"),
    [
        (LITTER, ".", "test", "testing/Test001.tif*3"),
        ("{b,a}.avi notes.txt", ".", None, "a.avi b.avi"),
        ("{b,a}.avi notes.txt", "b.avi", None, "b.avi"),
        (VIDEOS, ".", None, "a.mp4 holiday/2.avi holiday/10.avi holiday/sea/9.MP4 z.mov"),
        ("testing/08.avi testing/labels/", ".", "test", "testing/08.avi"),
        (BOTH, "testing/09", None, "09.jpg"),
        ("train/01/{0,1}.jpg test/frames/02/0.jpg", ".", "train", "training/01.jpg*2"),
        ("TRAIN/01/0.jpg Testing/frames/02/0.jpg", ".", "test", "testing/02.jpg"),
        ("Training_Videos/1.avi testing_videos/2.avi", ".", "test", "testing/2.avi"),
        (SHANGHAI, ".", "train", "training/01_001.avi"),
        (SHANGHAI, ".", "test", "testing/01_0014.jpg"),
        ("train/videos/{1,2}.mp4 train/frames/1/0.jpg", ".", "train", "training/1.mp4 training/2.mp4"),
        ("train/videos/{1,2}.mp4 train/frames/{1,2}/0.jpg", ".", "train", "training/1.jpg training/2.jpg"),
        (DAVIS + "ImageSets/2017/{train,val}.txt", ".", "train", "training/bear.jpg training/blackswan.jpg"),
        (DAVIS + "ImageSets/2017/{train,val}.txt", ".", "test", "testing/camel.jpg"),
        (DAVIS + "README.md", ".", None, "bear.jpg blackswan.jpg camel.jpg dog.jpg"),
        ("c1/{0,1}.jpg c1/masks/{0,1}.png c2/{0,1}.jpg c2_gt/{0,1}.png", ".", None, "c1.jpg*2 c2.jpg*2"),
        ("man_with_mask/{0,1}.pgm other/{0,1}.bmp", ".", None, "man_with_mask.pgm*2 other.bmp*2"),
        ("Train/1.avi Valid/2.avi Test/3.avi", ".", "validation", "validation/2.avi"),
        ("train/1.avi dev/2.avi", ".", "test", "testing/2.avi"),
        ("train/JPEGImages/003a/0.jpg train/Annotations/003a/0.png", ".", "train", "training/003a.jpg"),
    ],
)
def test_clips_are_found_in_a_tree_of_files(tmp_path, tree, path, split, clips):
    found = find_clips(grow(tmp_path, tree) / path, split)
    names = [f"{clip.name}{clip.files[0].suffix}{f'*{len(clip.files)}' * (len(clip.files) > 1)}" for clip in found]
    assert names == clips.split()
    assert bool(sides_of(tmp_path / path)) == (split is not None)


@pytest.mark.parametrize(
    ("tree", "path", "split", "message"),
    [
        (ROOT, ".", None, r"not one data set; choose one in it: \S*UCSD/ped1, \S*UCSD/ped2, \S*/avenue$"),
        (ROOT, "UCSD", None, r"UCSD is not one data set; choose one in it: \S*ped1, \S*ped2$"),
        ("set/b.mp4 set/ped/test/c.mp4", "set", None, r"not one data set.*set/ped"),
        (DAVIS + "ImageSets/2017/train.txt", ".", "test", r"training clips but no testing clips"),
        (BOTH, ".", "test", r"testing holds both videos \(08\.avi\) and folders of frames \(09\)"),
        (BOTH, "testing", None, r"testing holds both videos \(08\.avi\) and folders of frames \(09\)"),
        (SOURCE, ".", None, r"both videos \(frames_flat/source/a\.mp4\) and folders of frames \(frames_flat\)"),
        (SOURCE, "frames_flat", None, r"frames_flat holds both videos \(source/a\.mp4\) and folders of frames;"),
        ("clips/a.mp4 flat/0.jpg empty/", ".", None, r"both videos \(clips/a\.mp4\) and folders of frames \(flat\)"),
        ("training/frames/01/0.jpg training/frames/02/", ".", "train", r"training/frames/02 holds no frames"),
        ("c/{0,1}.jpg c/{0,1}.png", ".", None, r"c holds 0\.jpg and 0\.png, two images for one frame"),
        ("c/{0,1}.jpg c/{0,1}_mask.png", ".", None, r"c holds 0\.jpg and 0_mask\.png, two images for one frame"),
        ("c/f{00,01}.png c/{f00_depth,f00-gt}.png", ".", None, r"c holds f00\.png and f00-gt\.png, two images"),
        ("c/{0,1}.jpg c/cover.png", ".", None, r"c holds 2 JPEG and 1 PNG images; expected one format"),
        ("c/{0,1}.jpg c/alpha/{0,1}.png", ".", None, r"c holds both images \(0\.jpg\) and folders of images \(alpha\)"),
        ("{a,b}.mp4 {a,b}.avi", ".", None, r"holds a\.avi and a\.mp4, two files for one clip"),
        ("train/1.avi Training/2.avi test/3.avi", ".", "train", r"has both Training and train, sides of one kind"),
        ("", "nowhere", None, r"nowhere does not exist"),
        ("", ".", None, r"is an empty folder"),
        ("text/review.txt", "text", None, r"(?s)UCSD.*Avenue.*ShanghaiTech.*DAVIS"),
        ("text/review.txt", "text/review.txt", None, r"review\.txt is not a video"),
        ("text/review.txt", "text", "train", r"no training and testing sides"),
        ("0.jpg", "0.jpg", None, r"0\.jpg is not a video"),
        ("training/frames/", ".", "train", r"training/frames is an empty folder"),
        ("training/frames/", ".", None, r"training side.*one collection"),
    ],
)
def test_a_tree_of_files_that_is_no_collection_is_refused(tmp_path, tree, path, split, message):
    with pytest.raises(InputError, match=message):
        find_clips(grow(tmp_path, tree) / path, split)


def test_numbers_sort_as_numbers_and_a_link_that_leads_back_up_is_left_out(tmp_path):
    (clip,) = find_clips(grow(tmp_path, "clip/{0,10,2,1,b2,b10}.png") / "clip", None)
    assert [file.stem for file in clip.files] == ["0", "1", "2", "10", "b2", "b10"]
    (tmp_path / "clip/again").symlink_to(tmp_path)
    assert len(find_clips(tmp_path, None)) == 1


# --- what a frame is


def test_colour_becomes_bt601_luma_from_images_and_videos_in_their_order(tmp_path):
    colours = [(255, 0, 0), (0, 255, 0), (0, 0, 255), (255, 255, 255)]
    video = decoded(encode(tmp_path / "a.avi", (True, plain(*colours))))
    for frame, colour in zip(video, colours, strict=True):
        Image.new("RGB", (32, 24), colour).save(tmp_path / "a.png")
        luma = np.dot((0.299, 0.587, 0.114), colour)
        assert abs(decoded(tmp_path / "a.png").mean() - luma) < 1
        assert abs(frame.mean() - luma) < 3  # limited range, 8 bits


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
    np.testing.assert_array_equal(decoded(file), decoded(whole)[list(frames)])


def test_a_trimmed_video_that_is_cut_off_is_refused(tmp_path):
    file = trim(write_video(tmp_path / "a.mp4", frames=40), (13, 39))
    content = file.read_bytes()
    place = content.index(b"mdat") + 4
    half = (content.index(b"moov") - 4 - place) // 2
    file.write_bytes(content[: place + half] + bytes(half) + content[place + 2 * half :])
    with pytest.raises(InputError, match=r"a\.mp4.*(truncated|decoded)"):
        decoded(file)


def test_dropped_frames_of_an_avi_are_no_truncation(tmp_path):
    file = encode(tmp_path / "a.avi", (True, plain(*range(0, 200, 10))), step=2)  # every other one is empty
    assert Clip("", (file,)).announced() == 39 and len(decoded(file)) == 20


def test_the_video_is_read_and_not_its_cover(tmp_path):
    whole = write_video(tmp_path / "plain.mp4")
    covered = Path(shutil.copyfile(whole, tmp_path / "covered.mp4"))
    picture = io.BytesIO()
    Image.new("L", (320, 320)).save(picture, "JPEG")
    cover = box(b"ilst", box(b"covr", box(b"data", struct.pack(">II", 13, 0) + picture.getvalue())))
    handler = box(b"hdlr", bytes(8) + b"mdirappl" + bytes(9))
    add_box(covered, (b"moov",), box(b"udta", box(b"meta", bytes(4) + handler + cover)), first=True)
    with av.open(str(covered)) as container:
        assert [stream.codec_context.name for stream in container.streams.video] == ["mjpeg", "mpeg4"]
    clip = Clip("", (covered,))
    assert clip.size() == (64, 48) and clip.announced() == 12
    np.testing.assert_array_equal(decoded(clip), decoded(whole))


@pytest.mark.parametrize(("marked", "level"), [((True, False), 50), ((False, True), 200)])
def test_of_two_videos_the_default_is_read(tmp_path, marked, level):
    streams = [(default, plain(grey, grey, grey)) for default, grey in zip(marked, (50, 200), strict=True)]
    assert abs(decoded(encode(tmp_path / "two.mkv", *streams)).mean() - level) < 3


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


def turned(file: Path, *matrix: int) -> Path:
    """Give a video a display matrix (a, b, c, d), in units of 2^-16."""
    content, (a, b, c, d) = bytearray(file.read_bytes()), matrix
    struct.pack_into(">9i", content, content.index(b"tkhd") + 44, a, b, 0, c, d, 0, 0, 0, 1 << 30)
    file.write_bytes(content)
    return file


@pytest.mark.parametrize(("orientation", "upright", "matrix"), UPRIGHT)
def test_frames_are_upright_as_exif_and_the_display_matrix_say(tmp_path, orientation, upright, matrix):
    coded = np.full((48, 64), 20, np.uint8)  # bright on top, grey at the left: no turn leaves it as it is
    coded[:24], coded[:, :16] = 200, 110
    expected = np.asarray(Image.fromarray(np.ascontiguousarray(upright(coded))).resize((SIZE, SIZE), 2)).astype(float)
    exif = Image.Exif()
    exif[0x112] = orientation
    for suffix in (".png", ".jpg", ".tif"):
        Image.fromarray(coded).save(tmp_path / f"photo{suffix}", exif=exif)
    encode(tmp_path / "phone.mp4", (True, [coded[..., None].repeat(3, -1)]))
    turned(tmp_path / "phone.mp4", *(value << 16 for value in matrix))
    for file in tmp_path.iterdir():
        assert Clip("", (file,)).size() == ((64, 48) if orientation < 5 else (48, 64))
        assert np.abs(decoded(file)[0] - expected).mean() < 3, file


def test_a_transparent_frame_is_turned_and_laid_on_white(tmp_path):
    pixels = np.zeros((48, 64, 4), np.uint8)
    pixels[:24, :, 3] = 255  # the upper half is black, the lower one transparent
    exif = Image.Exif()
    exif[0x112] = 3  # upside down
    Image.fromarray(pixels).save(tmp_path / "frame.png", exif=exif)
    frame = decoded(tmp_path / "frame.png")[0]
    assert frame[: SIZE // 2 - 4].min() > 250 and frame[SIZE // 2 + 4 :].max() < 5


def test_damaged_exif_costs_nothing(tmp_path):
    Image.new("L", (24, 16), 77).save(tmp_path / "odd.jpg", exif=b"Exif\0\0not a TIFF at all")
    assert decoded(tmp_path / "odd.jpg").mean() == 77


def pages(count: int, size: tuple[int, int] = (24, 16)) -> list[Image.Image]:
    return [Image.new("L", size, 10 * k + 5) for k in range(count)]


@pytest.mark.parametrize(("name", "options"), [("a.tif", {}), ("a.tif", {"compression": "tiff_lzw"}), ("a.png", {})])
def test_every_page_is_a_frame_and_every_stack_a_clip(tmp_path, capfd, name, options):
    first, *others = pages(6)
    (tmp_path / "stacks").mkdir()
    for number in (10, 9):
        file = tmp_path / "stacks" / f"{number}{name}"
        first.save(file, save_all=True, append_images=others, **options)
    clips = [clip for place in (tmp_path / "stacks", tmp_path, file) for clip in find_clips(place, None)]
    assert [clip.name for clip in clips] == ["9a", "10a", "stacks/9a", "stacks/10a", "9a"]
    for clip in clips:
        assert clip.announced() == 6 and clip.size() == (24, 16)
        assert decoded(clip)[:, 0, 0].tolist() == [5, 15, 25, 35, 45, 55]
    content = file.read_bytes()
    end = content.rindex(b"IEND") - 16 if name == "a.png" else len(content) - 30
    for size in range(end // 2, end, 7):  # a list of pages that breaks off ends no clip early
        file.write_bytes(content[:size])
        with pytest.raises(InputError, match=rf"9{name}"):
            decoded(file)


@pytest.mark.parametrize("suffix", [".gif", ".webp"])
def test_every_picture_of_an_animation_is_a_frame(tmp_path, suffix):
    first, *others = [picture.convert("RGB") for picture in pages(6)]
    first.save(tmp_path / f"a{suffix}", save_all=True, append_images=others, lossless=True)
    (clip,) = find_clips(tmp_path, None)
    assert clip.announced() == 6 and decoded(clip)[:, 0, 0].tolist() == [5, 15, 25, 35, 45, 55]


def test_what_is_in_an_image_and_no_frame_is_left_out(tmp_path):
    shown, *others = pages(4)
    thumbnail, mask = Image.new("L", (6, 4)), Image.new("L", (24, 16))
    thumbnail.encoderinfo, mask.encoderinfo = {"tiffinfo": {254: 1}}, {"tiffinfo": {254: 4}}
    for name, levels, options in (
        ("still_first.png", [15, 25, 35], {"append_images": others, "default_image": True}),
        ("with_thumbnail.tif", [5, 15], {"append_images": [thumbnail, others[0], mask]}),
        ("with_preview.jpg", [5], {"format": "MPO", "append_images": [Image.new("L", (6, 4))]}),
    ):
        shown.save(tmp_path / name, save_all=True, **options)
        assert Clip("", (tmp_path / name,)).announced() == len(levels)
        assert decoded(tmp_path / name)[:, 0, 0].tolist() == levels


# --- bad input: one clear error that names the file


@pytest.mark.parametrize("share", [0.97, 0.5, 0.2, 0.01, 0.0])
@pytest.mark.parametrize(("name", "options"), [("a.avi", {}), ("a.mp4", {}), ("b.mp4", {"movflags": "faststart"})])
def test_truncated_videos(tmp_path, capfd, name, options, share):
    file = write_video(tmp_path / name, frames=40, **options)
    # Behind the frames of an AVI lies an index, whose loss costs nothing.
    cut(file, 0.97 * share if name == "a.avi" else share)
    with pytest.raises(InputError, match=rf"{name}.*(truncated|decoded)"):
        decoded(file)
    assert capfd.readouterr() == ("", "")


def test_a_video_file_without_pictures(tmp_path):
    with av.open(str(tmp_path / "sound.mp4"), "w") as container:
        stream = container.add_stream("aac", rate=8000)
        sound = av.AudioFrame.from_ndarray(np.zeros((1, 1024), np.float32), format="fltp", layout="mono")
        sound.rate = 8000
        container.mux(stream.encode(sound))
        container.mux(stream.encode(None))
    with pytest.raises(InputError, match=r"sound\.mp4.*no video stream"):
        Clip("", (tmp_path / "sound.mp4",)).announced()


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


@pytest.mark.parametrize(
    ("picture", "name", "options", "message"),
    [
        (Image.new("L", (24, 18)), "2.png", {}, r"clip/2\.png.*24x18.*0\.png.*24x16"),
        (Image.fromarray(np.full((16, 24), 4000, np.uint16)), "2.png", {}, r"2\.png.*I;16.*8 bits"),
        (
            Image.new("L", (24, 16)),
            "1.tif",
            {"save_all": True, "append_images": pages(3)},
            r"clip/1\.tif has 4 pages; expected one, because 0\.tif has one",
        ),
    ],
)
def test_frames_that_do_not_fit_the_others_or_have_more_than_8_bits(tmp_path, picture, name, options, message):
    folder = write_frames(tmp_path / "clip", suffix=Path(name).suffix)
    picture.save(folder / name, **options)
    with pytest.raises(InputError, match=message):
        decoded(find_clips(folder, None)[0])


def test_links_that_lead_in_circles_end_and_no_clip_is_read_twice(tmp_path):
    """Each of six folders links to all others: followed blindly that is more paths than can be counted."""
    for name in "abcdef":
        (tmp_path / name / "clip").mkdir(parents=True)
        Image.new("L", (8, 8)).save(tmp_path / name / "clip" / "1.png")
        for other in "abcdef":
            (tmp_path / name / f"to-{other}").symlink_to(tmp_path / other, target_is_directory=True)
    clips = find_clips(tmp_path, None)
    assert len(clips) == len({clip.files[0].resolve() for clip in clips}) == 6
