"""How fast examples are read, and in how much memory: ``python experiments/data.py``.

Rows of 4 KB (1,024 numbers of float32 and a label) and JPEGs of 64 x 64, in a random order and in
batches of 64, as a training on one replica gets them: dtrain's formats, and beside each the reader
that a user would take instead. Every measurement is a process of its own; all of them run in turn,
and each round begins with another one, so that a drift of the machine's speed meets all. A ratio is
over the best of the other readers of the same round; the median, with the least and the greatest.

Memory is the peak of the process above what it has once everything is imported, as a share of the
bytes of the examples: its own (anonymous), and that of mapped files. The latter are pages of the
system's cache, which it takes back when memory is short, as those that ``read`` fills.
"""

from __future__ import annotations

import argparse
import dataclasses
import io
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np

NUMBERS, SIDE, BATCH = 1024, 64, 64
FILES = 4
#: By kind of example: readers, dtrain's first.
OWN = {
    "rows": ["npy", "arrow", "parquet", "tfrecord", "array_record"],
    "jpeg": ["tfrecord", "array_record", "parquet", "tar"],
}
OTHERS = {
    "rows": ["np.load", "pyarrow", "tf.data TFRecord", "to_tf_dataset", "Grain", "PyDataset"],
    "jpeg": ["tf.data TFRecord", "to_tf_dataset", "Grain", "PyDataset"],
}
FEATURES = {
    "rows": {"x": {"dtype": "float32", "shape": [NUMBERS]}, "y": {"dtype": "int64"}},
    "jpeg": {"x": {"dtype": "string"}, "y": {"dtype": "int64"}},
}
IMAGES = {"x": [SIDE, SIDE, 3]}
#: The plain reader of the library of a format, which that is compared with too.
PLAIN = {
    "npy": "np.load", "arrow": "pyarrow", "parquet": "pyarrow", "tfrecord": "tf.data TFRecord",
    "array_record": "Grain", "tar": "tf.data TFRecord",
}  # fmt: skip


# --- the data


def examples(kind: str, first: int, count: int) -> Iterator[tuple[Any, int]]:
    """Yield made-up examples: rows, or encoded images."""
    from PIL import Image

    draws = np.random.default_rng(first)
    for index in range(first, first + count):
        if kind == "rows":
            yield draws.standard_normal(NUMBERS, np.float32), index % 10
            continue
        # Smooth, as pictures are: noise would be many times as large.
        small = draws.integers(0, 256, (8, 8, 3), np.uint8)
        file = io.BytesIO()
        Image.fromarray(small).resize((SIDE, SIDE), Image.Resampling.BICUBIC).save(
            file, "JPEG", quality=90
        )
        yield file.getvalue(), index % 10


def write(kind: str, folder: Path, count: int) -> None:
    """Write the same examples in every format."""
    import pyarrow as pa
    import pyarrow.feather as feather
    import pyarrow.parquet as pq
    import tensorflow as tf
    from array_record.python import array_record_module as array_record

    each = count // FILES
    for number in range(FILES):
        made = list(examples(kind, number * each, each))
        xs, ys = [x for x, _ in made], np.array([y for _, y in made], np.int64)
        stem = folder / f"{kind}-{number}"
        if kind == "rows":
            np.save(f"{stem}-x.npy", np.stack(xs))
            np.save(f"{stem}-y.npy", ys)
            values = pa.array(np.concatenate(xs))
            column: Any = pa.FixedSizeListArray.from_arrays(values, NUMBERS)
        else:
            column = pa.array(xs, pa.binary())
        table = pa.table({"x": column, "y": ys})
        pq.write_table(table, f"{stem}.parquet", row_group_size=1024, compression="none")
        feather.write_feather(table, f"{stem}.arrow", compression="uncompressed", chunksize=1024)
        with (
            tf.io.TFRecordWriter(f"{stem}.tfrecord") as records,
            _closing(array_record.ArrayRecordWriter(f"{stem}.arrayrecord", "group_size:1")) as ar,
        ):
            for x, y in made:
                data = _example(x, y)
                records.write(data)
                ar.write(data)
        if kind == "jpeg":
            _write_tar(f"{stem}.tar", made, number * each)
            images = folder / "images"
            images.mkdir(exist_ok=True)
            for index, (x, _) in enumerate(made, number * each):
                (images / f"{index:07}.jpg").write_bytes(x)


def _example(x: Any, y: int) -> bytes:
    import tensorflow as tf

    value = (
        tf.train.Feature(bytes_list=tf.train.BytesList(value=[x]))
        if isinstance(x, bytes)
        else tf.train.Feature(float_list=tf.train.FloatList(value=x))
    )
    label = tf.train.Feature(int64_list=tf.train.Int64List(value=[y]))
    features = tf.train.Features(feature={"x": value, "y": label})
    return tf.train.Example(features=features).SerializeToString()


class _closing:
    def __init__(self, writer: Any):
        self._writer = writer

    def __enter__(self) -> Any:
        return self._writer

    def __exit__(self, *_: object) -> None:
        self._writer.close()


def _write_tar(path: str, made: list[tuple[Any, int]], first: int) -> None:
    import tarfile

    with tarfile.open(path, "w") as file:
        for index, (x, y) in enumerate(made, first):
            for extension, data in (("jpg", x), ("cls", str(y).encode())):
                member = tarfile.TarInfo(f"{index:07}.{extension}")
                member.size = len(data)
                file.addfile(member, io.BytesIO(data))


# --- dtrain's readers


def dtrain(name: str, kind: str, folder: Path) -> Any:
    """Return the batches of a training on one replica, a ``tf.data.Dataset``."""
    from dtrain import datasets
    from dtrain.data.convert import adapted
    from dtrain.data.options import Shuffle
    from dtrain.data.order import order_of
    from dtrain.task.backends.tensorflow import input_pipeline

    images = IMAGES if kind == "jpeg" else None
    common: dict[str, Any] = {"target": "y", "images": images, "validation_split": 0, "classes": 10}
    if name == "npy":
        splits = datasets.npy(
            str(folder / "rows-*-x.npy"), str(folder / "rows-*-y.npy"), validation_split=0
        )
    elif name in ("tfrecord", "array_record"):
        ending = "tfrecord" if name == "tfrecord" else "arrayrecord"
        function = getattr(datasets, name)
        splits = function(
            str(folder / f"{kind}-*.{ending}"), features=FEATURES[kind], inputs="x", **common
        )
    elif name == "tar":
        common.update(target="cls", images={"jpg": IMAGES["x"]})
        splits = datasets.huggingface(str(folder / "jpeg-*.tar"), inputs="jpg", **common)
    else:
        splits = datasets.table(str(folder / f"{kind}-*.{name}"), inputs="x", **common)
    train = adapted(splits).train
    inputs = input_pipeline.Inputs(train, None, BATCH, 0, order=order_of(train, Shuffle.auto, 8, 0))
    return input_pipeline.training(inputs, replicas=1, first_replica=0, local_replicas=1)


# --- what a user would take instead


def tf_data(kind: str, folder: Path) -> Any:
    import tensorflow as tf

    auto = tf.data.AUTOTUNE
    spec = (
        tf.io.FixedLenFeature([NUMBERS], tf.float32)
        if kind == "rows"
        else tf.io.FixedLenFeature([], tf.string)
    )
    features = {"x": spec, "y": tf.io.FixedLenFeature([], tf.int64)}

    def parse(records: Any) -> Any:
        found = tf.io.parse_example(records, features)
        return (_decoded(found["x"]) if kind == "jpeg" else found["x"]), found["y"]

    names = sorted(map(str, folder.glob(f"{kind}-*.tfrecord")))
    records = tf.data.Dataset.from_tensor_slices(names).shuffle(len(names))
    records = records.interleave(tf.data.TFRecordDataset, num_parallel_calls=auto)
    batches = records.shuffle(10_000).repeat().batch(BATCH)
    return batches.map(parse, num_parallel_calls=auto).prefetch(auto)


def _decoded(encoded: Any) -> Any:
    import tensorflow as tf

    def one(image: Any) -> Any:
        return tf.cast(tf.io.decode_jpeg(image, channels=3), tf.float32) / 255.0

    return tf.map_fn(one, encoded, fn_output_signature=tf.float32)


def plain_arrays(kind: str, folder: Path) -> Any:
    return _gathered([
        (np.load(path, mmap_mode="r"), np.load(str(path).replace("-x", "-y")))
        for path in sorted(folder.glob("rows-*-x.npy"))
    ])  # fmt: skip


def plain_arrow(kind: str, folder: Path) -> Any:
    import pyarrow as pa

    parts = []
    for path in sorted(folder.glob("rows-*.arrow")):
        for batch in pa.ipc.open_file(pa.memory_map(str(path))).read_all().to_batches():
            x = batch.column("x").flatten().to_numpy().reshape(-1, NUMBERS)
            parts.append((x, batch.column("y").to_numpy()))
    return _gathered(parts)


def _gathered(parts: list[tuple[Any, Any]]) -> Any:
    """Return batches in a random order of rows of arrays, as ``tf.data`` gets them from NumPy."""
    import tensorflow as tf

    ends = np.cumsum([len(x) for x, _ in parts])

    def batches() -> Iterator[Any]:
        for epoch in range(1_000):
            order = np.random.default_rng(epoch).permutation(ends[-1])
            for begin in range(0, len(order) - BATCH + 1, BATCH):
                rows = order[begin : begin + BATCH]
                owners = np.searchsorted(ends, rows, side="right")
                x, y = np.empty((BATCH, NUMBERS), np.float32), np.empty(BATCH, np.int64)
                for owner in np.unique(owners):
                    at = np.flatnonzero(owners == owner)
                    own = rows[at] - (ends[owner] - len(parts[owner][0]))
                    x[at], y[at] = parts[owner][0][own], parts[owner][1][own]
                yield x, y

    spec = tf.TensorSpec((BATCH, NUMBERS), tf.float32), tf.TensorSpec(BATCH, tf.int64)
    made = tf.data.Dataset.from_generator(batches, output_signature=spec)
    return made.prefetch(tf.data.AUTOTUNE)


def hugging_face(kind: str, folder: Path) -> Any:
    import datasets

    files = sorted(map(str, folder.glob(f"{kind}-*.parquet")))
    loaded: Any = datasets.load_dataset(
        "parquet", data_files=files, split="train", cache_dir=str(folder / "hf")
    )
    if kind == "jpeg":
        loaded = loaded.cast_column("x", datasets.Image())
    batches = loaded.to_tf_dataset(
        columns="x", label_cols="y", batch_size=BATCH, shuffle=True, drop_remainder=True
    )
    return batches.repeat()


def grain(kind: str, folder: Path) -> Iterator[Any]:
    import grain.python as pygrain
    import tensorflow as tf
    from PIL import Image

    class Parse(pygrain.MapTransform):
        def map(self, record: bytes) -> Any:
            found = tf.train.Example.FromString(record).features.feature
            if kind == "rows":
                x = np.asarray(found["x"].float_list.value, np.float32)
            else:
                image = Image.open(io.BytesIO(found["x"].bytes_list.value[0]))
                x = np.asarray(image, np.float32) / 255.0
            return x, found["y"].int64_list.value[0]

    source = pygrain.ArrayRecordDataSource(sorted(map(str, folder.glob(f"{kind}-*.arrayrecord"))))
    sampler = pygrain.IndexSampler(
        len(source), shuffle=True, seed=0, shard_options=pygrain.NoSharding(), num_epochs=None
    )
    yield from pygrain.DataLoader(
        data_source=source,
        sampler=sampler,
        operations=[Parse(), pygrain.Batch(BATCH, drop_remainder=True)],
        worker_count=0,
    )


def py_dataset(kind: str, folder: Path) -> Iterator[Any]:
    """Yield what Keras' ``fit`` gives to a model of a step that does nothing."""
    import queue
    import threading

    import keras
    import tensorflow as tf
    from PIL import Image

    found: queue.Queue[Any] = queue.Queue(1)
    if kind == "rows":
        xs = [np.load(p, mmap_mode="r") for p in sorted(folder.glob("rows-*-x.npy"))]
        ys = [np.load(p) for p in sorted(folder.glob("rows-*-y.npy"))]
        each, count = len(xs[0]), len(xs[0]) * len(xs)
    else:
        paths = sorted((folder / "images").iterdir())
        count = len(paths)
    order = np.random.default_rng(0).permutation(count)

    class Data(keras.utils.PyDataset):
        def __len__(self) -> int:
            return count // BATCH

        def __getitem__(self, index: int) -> Any:
            rows = order[index * BATCH : (index + 1) * BATCH]
            if kind == "rows":
                x = np.stack([xs[row // each][row % each] for row in rows])
                return x, np.array([ys[row // each][row % each] for row in rows])
            images = [np.asarray(Image.open(paths[row]), np.float32) / 255.0 for row in rows]
            return np.stack(images), rows % 10

    class Nothing(keras.Model):
        def train_step(self, data: Any) -> Any:
            return {"loss": tf.reduce_sum(data[1]) * 0}

    class Tell(keras.callbacks.Callback):
        def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
            found.put(None)

    model = Nothing()
    model.compile()
    fitting = {"epochs": 1_000, "verbose": 0, "callbacks": [Tell()]}
    threading.Thread(target=model.fit, args=(Data(workers=2),), kwargs=fitting, daemon=True).start()
    while True:
        yield found.get()


READERS: dict[str, Callable[[str, Path], Any]] = {
    "np.load": plain_arrays,
    "pyarrow": plain_arrow,
    "tf.data TFRecord": tf_data,
    "to_tf_dataset": hugging_face,
    "Grain": grain,
    "PyDataset": py_dataset,
}


# --- measuring


def counted(batches: Any) -> Iterator[int]:
    """Yield how many batches were taken: of a ``tf.data.Dataset`` in a graph, as Keras' ``fit``
    and dtrain take them, and of another reader one at a time."""
    import tensorflow as tf

    if not isinstance(batches, tf.data.Dataset):
        for _ in batches:
            yield 1
        return
    iterator = iter(batches)

    @tf.function
    def some() -> None:
        for _ in tf.range(16):
            next(iterator)

    while True:
        some()
        yield 16


def measure(reader: str, kind: str, folder: Path, seconds: float) -> None:
    """Print examples a second, and memory, of one reader; run as a process of its own."""
    import keras  # noqa: F401
    import tensorflow as tf

    tf.config.set_visible_devices([], "GPU")
    side, _, name = reader.partition(":")
    if side == "dtrain":
        # The import alone is measured.
        import dtrain.task.backends.tensorflow.input_pipeline  # noqa: F401

        batches = dtrain_reader(name, kind, folder)
    else:
        if name == "Grain":
            import grain.python  # noqa: F401
        if name == "to_tf_dataset":
            import datasets  # noqa: F401
        batches = READERS[name](kind, folder)
    before = np.array(_resident())
    taken = counted(batches)
    for _ in range(8):  # caches, indices and threads are there afterwards
        next(taken)
    begin, count, peak = time.perf_counter(), 0, before
    while (spent := time.perf_counter() - begin) < seconds:
        count += next(taken)
        peak = np.maximum(peak, _resident())
    own, mapped = (peak - before).tolist()
    found = {"rate": count * BATCH / spent, "memory": own, "mapped": mapped}
    print(json.dumps(found), flush=True)
    os._exit(0)  # with whatever threads readers have


dtrain_reader = dtrain


def _resident() -> tuple[int, int]:
    """Return bytes that are resident: of its own, and of mapped files."""
    lines = Path("/proc/self/status").read_text().splitlines()
    kb = {line.split(":")[0]: int(line.split()[1]) for line in lines if line.startswith("Rss")}
    return (kb["RssAnon"] + kb["RssShmem"]) * 1024, kb["RssFile"] * 1024


def run(reader: str, kind: str, folder: Path, seconds: float) -> dict[str, float]:
    command = [sys.executable, __file__, "--measure", reader, "--kind", kind]
    command += ["--folder", str(folder), "--seconds", str(seconds)]
    environment = {
        **os.environ, "TF_CPP_MIN_LOG_LEVEL": "3", "KERAS_BACKEND": "tensorflow",
        "DTRAIN_CACHE": str(folder / "cache"), "HF_HUB_OFFLINE": "1",
        "HF_HOME": str(folder / "hf"),
    }  # fmt: skip
    done = subprocess.run(command, env=environment, capture_output=True, text=True)
    if done.returncode:
        raise SystemExit(f"{reader}: {done.stdout}{done.stderr}")
    found: dict[str, float] = json.loads(done.stdout.splitlines()[-1])
    return found


@dataclasses.dataclass(frozen=True)
class Found:
    """What was measured of one reader.

    Attributes:
        kind, reader: of what; ``dtrain:NAME`` or ``other:NAME``.
        rates: examples a second, by round.
        ratios: over the best of the other readers, by round.
        plain: over the plain reader of the format's library, by round; empty where there is none.
        memory, mapped: as shares of the bytes of the examples.
    """

    kind: str
    reader: str
    rates: list[float]
    ratios: list[float]
    plain: list[float]
    memory: float
    mapped: float

    def row(self) -> str:
        """Return the row of a table."""
        side, _, name = self.reader.partition(":")
        return (
            f"| {self.kind} | {'dtrain' if side == 'dtrain' else ''} | {name} | "
            f"{statistics.median(self.rates):,.0f} | {_spread(self.ratios)} | "
            f"{_spread(self.plain)} | {self.memory:.2f} | {self.mapped:.2f} |"
        )


def _spread(ratios: list[float]) -> str:
    if not ratios:
        return ""
    return f"{statistics.median(ratios):.2f} ({min(ratios):.2f} to {max(ratios):.2f})"


def compare(kind: str, folder: Path, rounds: int, seconds: float, size: int) -> list[Found]:
    """Measure all readers of a kind in turn."""
    readers = [f"dtrain:{n}" for n in OWN[kind]] + [f"other:{n}" for n in OTHERS[kind]]
    rates: dict[str, list[float]] = {reader: [] for reader in readers}
    memory, mapped = dict.fromkeys(readers, 0.0), dict.fromkeys(readers, 0.0)
    for turn in range(rounds):
        for reader in readers[turn % len(readers) :] + readers[: turn % len(readers)]:
            found = run(reader, kind, folder, seconds)
            rates[reader].append(found["rate"])
            memory[reader] = max(memory[reader], found["memory"])
            mapped[reader] = max(mapped[reader], found["mapped"])
            print(f"{kind} {turn + 1}/{rounds} {reader}: {found['rate']:,.0f} examples/s, "
                  f"{found['memory'] / 2**20:,.0f} MB", flush=True)  # fmt: skip
    best = [max(rates[r][i] for r in readers if r.startswith("other")) for i in range(rounds)]
    return [
        Found(
            kind,
            reader,
            rates[reader],
            [rate / top for rate, top in zip(rates[reader], best, strict=True)],
            _over_plain(reader, rates),
            memory[reader] / size,
            mapped[reader] / size,
        )
        for reader in readers
    ]


def _over_plain(reader: str, rates: dict[str, list[float]]) -> list[float]:
    side, _, name = reader.partition(":")
    plain = rates.get(f"other:{PLAIN.get(name)}") if side == "dtrain" else None
    if plain is None:
        return []
    return [rate / other for rate, other in zip(rates[reader], plain, strict=True)]


def plot(found: list[Found], path: Path) -> None:
    """Draw the ratios of all readers, those of each kind below each other."""
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    kinds = list(dict.fromkeys(each.kind for each in found))
    figure, axes = plt.subplots(len(kinds), 1, figsize=(8, 2.6 * len(kinds)), squeeze=False)
    for axis, kind in zip(axes[:, 0], kinds, strict=True):
        some = [each for each in found if each.kind == kind][::-1]
        middle = [statistics.median(each.ratios) for each in some]
        spread = [
            [m - min(each.ratios) for m, each in zip(middle, some, strict=True)],
            [max(each.ratios) - m for m, each in zip(middle, some, strict=True)],
        ]
        own = [each.reader.startswith("dtrain") for each in some]
        colors = ["#3366aa" if mine else "#bbbbbb" for mine in own]
        labels = [
            f"{'dtrain ' if mine else ''}{each.reader.partition(':')[2]}"
            for each, mine in zip(some, own, strict=True)
        ]
        axis.barh(labels, middle, xerr=spread, color=colors, capsize=3)
        axis.axvline(1, color="black", linewidth=0.8)
        axis.set_title("rows of 4 KB" if kind == "rows" else "JPEGs of 64 x 64", fontsize=10)
        for place, each in enumerate(some):
            axis.text(0.01, place, f"memory {each.memory:.2f}", va="center", fontsize=7)
    axes[-1, 0].set_xlabel("examples a second, over the best other reader (least to greatest)")
    figure.tight_layout()
    figure.savefig(path, dpi=110)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rows", type=int, default=262_144, help="rows of 4 KB (default: 1 GB)")
    parser.add_argument("--images", type=int, default=262_144, help="of 64 x 64 (0.5 GB)")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--seconds", type=float, default=8.0, help="of one measurement")
    parser.add_argument("--only", choices=OWN)
    parser.add_argument("--plot", type=Path, help="draw the ratios there (PNG)")
    parser.add_argument("--folder", type=Path, help="keep the data there, and take what is there")
    parser.add_argument("--measure", help=argparse.SUPPRESS)
    parser.add_argument("--kind", help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.measure:
        measure(given.measure, given.kind, given.folder, given.seconds)
    with tempfile.TemporaryDirectory() as temporary:
        folder = (given.folder or Path(temporary)).absolute()
        folder.mkdir(parents=True, exist_ok=True)
        rows: list[Found] = []
        for kind, count in (("rows", given.rows), ("jpeg", given.images)):
            if given.only not in (None, kind):
                continue
            done = folder / f"{kind}-{count}"
            if not done.exists():
                print(f"writing {count:,} examples of {kind}", flush=True)
                code = f"import data; data.write({kind!r}, data.Path({str(folder)!r}), {count})"
                subprocess.run([sys.executable, "-c", code], cwd=Path(__file__).parent, check=True)
                done.touch()
            size = sum(path.stat().st_size for path in folder.glob(f"{kind}-*.tfrecord"))
            rows += compare(kind, folder, given.rounds, given.seconds, size)
    print("\n| examples | | reader | examples/s | over the best other | over the plain reader "
          "of its library | memory | mapped |")  # fmt: skip
    print("|---|---|---|---|---|---|---|---|")
    print("\n".join(each.row() for each in rows))
    if given.plot:
        plot(rows, given.plot)


if __name__ == "__main__":
    main()
