"""The data loaders of the Keras and TensorFlow guides, with nothing of the suite in them: what its own are held
against.

Usage: tensorflow_loader.py files FOLDER BATCH PIXELS THREADS, with one subfolder a class, or tfrecord …, with shards;
then a number of passes on each line of standard input. It answers with the seconds that they took and the images that
came.
"""

import os
import sys
import time
from pathlib import Path

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
os.environ["KERAS_BACKEND"] = "tensorflow"

import keras
import tensorflow as tf

FEATURES = {
    "image/encoded": tf.io.FixedLenFeature([], tf.string),
    "image/class/label": tf.io.FixedLenFeature([], tf.int64),
}


def files(folder, batch, pixels):
    dataset = keras.utils.image_dataset_from_directory(
        folder, image_size=(pixels, pixels), batch_size=batch, shuffle=True, seed=0, verbose=False
    )
    return dataset.prefetch(tf.data.AUTOTUNE)


def tfrecord(folder, batch, _pixels):
    def parse(record):
        example = tf.io.parse_single_example(record, FEATURES)
        # The inverse transform whose pixels equal Pillow's, as the suite's: the faster one makes other pixels.
        image = tf.io.decode_jpeg(example["image/encoded"], channels=3, dct_method="INTEGER_ACCURATE")
        return image, example["image/class/label"]

    names = sorted(str(path) for path in Path(folder).glob("*.tfrecord"))
    return (
        tf.data.TFRecordDataset(names, num_parallel_reads=tf.data.AUTOTUNE)
        .shuffle(2048)
        .map(parse, num_parallel_calls=tf.data.AUTOTUNE)
        .batch(batch, drop_remainder=True)
        .prefetch(tf.data.AUTOTUNE)
    )


def main(kind, folder, batch, pixels, threads):
    tf.config.threading.set_intra_op_parallelism_threads(threads)
    tf.config.threading.set_inter_op_parallelism_threads(threads)
    dataset = {"files": files, "tfrecord": tfrecord}[kind](folder, batch, pixels)
    for _ in dataset:
        pass
    for line in sys.stdin:
        count = 0
        started = time.perf_counter()
        for _ in range(int(line)):
            for images, _labels in dataset:
                count += len(images)
        print(time.perf_counter() - started, count, flush=True)


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], *map(int, sys.argv[3:]))
