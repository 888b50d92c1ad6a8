"""Makes the files of this folder: `python make.py FOLDER`; those of TensorFlow where it is installed.

They were made with PyTorch 2.13.0, scikit-learn 1.9.1, skops 0.16.0, Keras 3.15.1, TensorFlow 2.21.0.
"""

import os
import pickle
import sys
import zipfile
from pathlib import Path

os.environ.setdefault("KERAS_BACKEND", "torch")


def make_torch(folder: Path) -> None:
    """Write a linear layer with relu in every form that PyTorch has."""
    import torch

    class Tides(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer = torch.nn.Linear(3, 2)

        def forward(self, level: torch.Tensor) -> torch.Tensor:
            return torch.relu(self.layer(level))

    torch.manual_seed(0)
    tides = Tides().eval()
    state = tides.state_dict()
    torch.save(state, folder / "state.pt")
    torch.save(state, folder / "state-old.pt", _use_new_zipfile_serialization=False)
    torch.save(torch.nn.Linear(3, 2), folder / "module.pt")
    torch.jit.save(torch.jit.trace(tides, torch.ones(1, 3)), folder / "tides.torchscript")
    _strip_paths(folder / "tides.torchscript")
    batch = torch.export.Dim("batch")
    exported = torch.export.export(tides, (torch.ones(2, 3),), dynamic_shapes=({0: batch},))
    for node in exported.graph.nodes:
        node.meta.pop("stack_trace", None)  # paths of the machine
    torch.export.save(exported, folder / "tides.pt2")


def _strip_paths(file: Path) -> None:
    """Leave out what TorchScript keeps for tracebacks: paths of the machine."""
    with zipfile.ZipFile(file) as archive:
        kept = {name: archive.read(name) for name in archive.namelist() if not name.endswith(".debug_pkl")}
    with zipfile.ZipFile(file, "w") as archive:
        for name, content in kept.items():
            archive.writestr(name, content)


def make_sklearn(folder: Path) -> None:
    """Write a pipeline as pickle, joblib and skops file."""
    import joblib
    import numpy as np
    import skops.io
    from sklearn.linear_model import Ridge
    from sklearn.pipeline import make_pipeline
    from sklearn.preprocessing import StandardScaler

    values = np.random.default_rng(0).random((20, 4))
    pipeline = make_pipeline(StandardScaler(), Ridge()).fit(values, values.sum(axis=1))
    (folder / "pipeline.pkl").write_bytes(pickle.dumps(pipeline))
    (folder / "ridge.pkl").write_bytes(pickle.dumps(pipeline[1], protocol=0))
    joblib.dump(pipeline, folder / "pipeline.joblib")
    joblib.dump(pipeline, folder / "packed.joblib", compress=3)
    skops.io.dump(pipeline, folder / "pipeline.skops", compression=zipfile.ZIP_DEFLATED)


def make_keras(folder: Path) -> None:
    """Write two dense layers as Keras 3 file and as HDF5."""
    import keras

    layers = [keras.Input((3,), name="level"), keras.layers.Dense(4, activation="relu"), keras.layers.Dense(2)]
    model = keras.Sequential(layers)
    model.save(folder / "tides.keras")
    model.save(folder / "tides.h5")


def make_tensorflow(folder: Path) -> None:
    """Write a matrix product as SavedModel and as checkpoint."""
    import tensorflow as tf

    class Tides(tf.Module):
        def __init__(self) -> None:
            self.w = tf.Variable(tf.ones((3, 2)), name="w")
            self.b = tf.Variable(tf.zeros((2,)), name="b")

        @tf.function(input_signature=[tf.TensorSpec((None, 3), tf.float32, name="level")])
        def __call__(self, level):
            return {"flood": tf.nn.relu(level @ self.w + self.b)}

    tides = Tides()
    tf.saved_model.save(tides, str(folder / "savedmodel"), signatures=tides.__call__)
    tf.train.Checkpoint(model=tides).write(str(folder / "checkpoint" / "tides"))


if __name__ == "__main__":
    target = Path(sys.argv[1])
    for make in (make_torch, make_sklearn, make_keras, make_tensorflow):
        try:
            make(target)
        except ImportError as error:
            sys.stderr.write(f"{make.__name__}: {error}\n")
