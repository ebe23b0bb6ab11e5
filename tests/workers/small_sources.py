"""Small files in the real formats of mnist, fashion_mnist and cifar10, for TFDS's own builders.

    python small_sources.py DATA_DIR NAME…     # prepare.main for each NAME, with those files

TFDS gets the checksums of the small files instead of those of the real ones, and their number of
examples as that of mnist. Everything else is TFDS's own: it finds the files where a user without a
network puts them (DATA_DIR/downloads/manual/NAME), verifies, extracts, reads and writes.
With SOURCES=served mnist is downloaded from a server on this machine; with SOURCES="as published"
TFDS keeps the real checksums, which the small files do not match.
"""

from __future__ import annotations

import functools
import gzip
import hashlib
import http.server
import io
import json
import os
import struct
import sys
import tarfile
import threading
from pathlib import Path
from typing import Any

import numpy as np

TRAIN, TEST = 96, 24


def images_of(shape: tuple[int, ...], count: int, seed: int) -> tuple[Any, Any]:
    """Return random images, and the labels 0 to 9 in turn."""
    images = np.random.default_rng(seed).integers(0, 256, (count, *shape), np.uint8)
    return images, (np.arange(count) % 10).astype(np.uint8)


def write_idx(folder: Path, seed: int) -> None:
    """Write the four gzipped idx files of mnist or fashion_mnist."""
    folder.mkdir(parents=True)
    for part, count in (("train", TRAIN), ("t10k", TEST)):
        images, labels = images_of((28, 28), count, seed)
        header = struct.pack(">IIII", 2051, count, 28, 28)
        with gzip.open(folder / f"{part}-images-idx3-ubyte.gz", "wb") as file:
            file.write(header + images.tobytes())
        with gzip.open(folder / f"{part}-labels-idx1-ubyte.gz", "wb") as file:
            file.write(struct.pack(">II", 2049, count) + labels.tobytes())


def write_cifar(folder: Path) -> None:
    """Write the binary archive of cifar10: a label, then 3×32×32 bytes, for each example."""
    folder.mkdir(parents=True)
    names = "\n".join(f"class{number}" for number in range(10)).encode()
    parts = {"batches.meta.txt": names}
    for number in range(1, 6):
        parts[f"data_batch_{number}.bin"] = records(TRAIN // 5, number)
    parts["test_batch.bin"] = records(TEST, 6)
    with tarfile.open(folder / "cifar-10-binary.tar.gz", "w:gz") as archive:
        for name, content in parts.items():
            member = tarfile.TarInfo(f"cifar-10-batches-bin/{name}")
            member.size = len(content)
            archive.addfile(member, io.BytesIO(content))


def records(count: int, seed: int) -> bytes:
    images, labels = images_of((3, 32, 32), count, seed)
    return b"".join(
        bytes([label]) + image.tobytes() for image, label in zip(images, labels, strict=True)
    )


def write(data_dir: Path) -> None:
    """Write all files where TFDS expects manual downloads."""
    by_hand = data_dir / "downloads" / "manual"
    write_idx(by_hand / "mnist", 1)
    write_idx(by_hand / "fashion_mnist", 2)
    write_cifar(by_hand / "cifar10")


def teach(data_dir: Path) -> None:
    """Tell TFDS the checksums and the number of examples of these files."""
    import tensorflow_datasets as tfds
    from tensorflow_datasets.core.download import checksums
    from tensorflow_datasets.image_classification import cifar, mnist

    mnist._TRAIN_EXAMPLES, mnist._TEST_EXAMPLES = TRAIN, TEST
    builders = (mnist.MNIST, mnist.FashionMNIST, cifar.Cifar10)
    for builder, known in [(builder, builder.url_infos) for builder in builders]:
        folder = data_dir / "downloads" / "manual" / builder.name
        builder.url_infos = {
            url: checksums.UrlInfo(
                size=tfds.core.utils.Size((folder / info.filename).stat().st_size),
                checksum=hashlib.sha256((folder / info.filename).read_bytes()).hexdigest(),
                filename=info.filename,
            )
            for url, info in known.items()
        }


def serve_mnist(folder: Path) -> None:
    """Serve mnist from this process instead of TFDS's own server."""
    from tensorflow_datasets.image_classification import mnist

    handler = functools.partial(http.server.SimpleHTTPRequestHandler, directory=str(folder))
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    mnist.MNIST.URL = f"http://127.0.0.1:{server.server_port}/mnist/"
    infos = mnist.MNIST.url_infos.values()
    mnist.MNIST.url_infos = {mnist.MNIST.URL + info.filename: info for info in infos}


def print_summary(name: str, data_dir: Path) -> None:
    """Print the images' shape and sum and the labels' sum."""
    import tensorflow_datasets as tfds

    found = tfds.load(name, split="train", data_dir=str(data_dir), as_supervised=True)
    pairs = list(tfds.as_numpy(found))
    images, labels = np.array([image for image, _ in pairs]), [int(label) for _, label in pairs]
    sums = {"images": int(images.sum()), "labels": sum(labels)}
    print(json.dumps({"name": name, "shape": images.shape, "dtype": str(images.dtype), **sums}))


def main(data_dir: Path, names: list[str]) -> None:
    from tfcluster_workers.data import prepare

    how = os.environ.get("SOURCES", "by hand")
    folder = data_dir.parent / "served" if how == "served" else data_dir
    if not folder.exists():
        write(folder)
    if how != "as published":
        teach(folder)
    if how == "served":
        serve_mnist(folder / "downloads" / "manual")
    for name in names:
        prepare.main(["--dataset", name, "--data-dir", str(data_dir)])
        print_summary(name, data_dir)


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2:])
