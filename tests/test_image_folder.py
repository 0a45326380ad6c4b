"""What a folder of images, and a CSV of paths, is read as."""

from __future__ import annotations

import errno
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from dtrain import datasets
from dtrain.datasets.images import as_png
from dtrain.errors import DataError, UsageError


def picture(path: str, mode: str = "RGB", value: int = 200) -> None:
    file = Path(path)
    file.parent.mkdir(parents=True, exist_ok=True)
    if mode == "I;16":
        Image.fromarray(np.full((4, 6), value << 8, np.uint16)).save(file)
    else:
        Image.new(mode, (6, 4), value if mode == "L" else (value,) * len(mode)).save(file)


def listed(splits):
    return [(Path(s.info.place(i)).as_posix(), int(s.y[i])) for s in splits for i in range(len(s))]


class TestFolders:
    def test_train_and_validation_folders(self):
        for path in ("train/cat/1.png", "train/dog/a/2.jpg", "train/dog/3.png", "val/dog/4.png"):
            picture(f"pets/{path}")
        splits = datasets.image_folder("pets", [4, 6])
        assert splits.count_classes() == 2 and splits.train.info.class_names() == ["cat", "dog"]
        assert listed([splits.train]) == [
            ("pets/train/cat/1.png", 0), ("pets/train/dog/3.png", 1),
            ("pets/train/dog/a/2.jpg", 1),
        ]  # fmt: skip
        assert listed([splits.validation]) == [("pets/val/dog/4.png", 1)]
        picture("pets/val/eel/5.png")
        with pytest.raises(UsageError, match="a class eel that the training images do not have"):
            datasets.image_folder("pets", [4, 6])

    def test_what_is_left_out_is_said(self):
        picture("pets/cat/1.png")
        picture("pets/dog/2.png")
        picture("pets/3.png")
        Path("pets/eel").mkdir()
        Path("pets/.cache").mkdir()
        for name in ("cat/notes.txt", "dog/.hidden.png"):
            Path("pets", name).write_text("x")
        splits = datasets.image_folder("pets", [4, 6], validation_split=0)
        assert len(splits.train) == 2 and splits.count_classes() == 3
        text = "\n".join(splits.notices)
        assert "the class folder eel has no image" in text
        assert "beside the class folders are left out (1, the first: 3.png)" in text
        assert "no images are left out: .txt (1)" in text

    def test_a_csv_of_paths_and_classes(self):
        for name in ("a/1.png", "a/2.png", "3.png"):
            picture(f"pets/{name}")
        Path("pets/all.csv").write_text(
            "size,file,label\n1,a/1.png,dog\n2,3.png,cat\n3,a/2.png,dog\n"
        )
        splits = datasets.image_folder("pets/all.csv", [4, 6], validation_split=0)
        assert listed([splits.train]) == [
            ("pets/a/1.png", 1), ("pets/3.png", 0), ("pets/a/2.png", 1)
        ]  # fmt: skip
        Path("pets/all.csv").write_text("file,label\n3.png,dog\nnone.png,dog\n")
        with pytest.raises(DataError, match=r"pets/all.csv, line 3.*no file pets/none.png"):
            datasets.image_folder("pets/all.csv", [4, 6])
        Path("pets/all.csv").write_text("a,b\n1,2\n")
        with pytest.raises(UsageError, match="no CSV of images and classes"):
            datasets.image_folder("pets/all.csv", [4, 6])

    @pytest.mark.parametrize(
        ("name", "mode", "channels", "value"),
        [("1.webp", "RGB", 3, 200), ("1.tif", "RGBA", 3, 200), ("1.tiff", "I;16", 1, 200),
         ("1.bmp", "L", 1, 200)],
    )  # fmt: skip
    def test_kinds_that_are_converted(self, name, mode, channels, value):
        picture(f"pets/cat/{name}", mode, value)
        [path] = as_png([f"pets/cat/{name}"], channels)
        with Image.open(path) as image:
            pixels = np.asarray(image).astype(int)
        assert pixels.shape[:2] == (4, 6) and np.abs(pixels - value).max() <= 2
        assert as_png([f"pets/cat/{name}"], channels) == [path]
        Path(f"pets/cat/2{Path(name).suffix}").write_bytes(b"none")
        with pytest.raises(DataError, match=r"2\..* is no image that can be read"):
            as_png([f"pets/cat/2{Path(name).suffix}"], channels)

    def test_a_cache_without_room_is_no_broken_image(self, monkeypatch):
        def full(*_):
            raise OSError(errno.ENOSPC, "No space left on device")

        picture("pets/cat/1.webp")
        monkeypatch.setattr(Image.Image, "save", full)
        with pytest.raises(UsageError, match=r"^DTRAIN_CACHE=.*: cannot be written \(No space"):
            as_png(["pets/cat/1.webp"], 3)


def test_data_reads_all_before_it_says_that_a_dataset_trains(capsys, monkeypatch):
    from dtrain.cli.commands import data

    for name in ("cat/1.png", "dog/2.png", "dog/3.png"):
        picture(f"pets/{name}")
    Path("pets/dog/4.png").write_bytes(b"")
    command = ["dataset=image_folder", "dataset.path=pets", "trainer.batch_size=2", "speed=false"]
    assert data.main(command) == 2
    assert "pets/dog/4.png: is no image that can be read" in capsys.readouterr().err
    Path("pets/dog/4.png").unlink()
    assert data.main([*command, "check=true"]) == 0
    assert "all 3 examples can be read" in capsys.readouterr().out
