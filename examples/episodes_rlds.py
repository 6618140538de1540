"""RLDS: a policy learns from windows of episodes, and a resumed run goes on at the exact window.

``python examples/episodes_rlds.py`` writes a TFDS folder whose episodes show a dot on its way. It
trains without a stop, then with a stop and from the saved state, and compares windows and losses.
"""

import json
import tempfile
from pathlib import Path
from typing import Any

import numpy as np

import streamrec as sr

SIZE, ROWS, STEPS, STOP = 8, 32, 40, 17  # an epoch has 16 steps
SPLIT = {"name": "train", "shardLengths": ["16"] * 4}
PICTURE = {"shape": {"dimensions": [SIZE, SIZE, 1]}, "dtype": "uint8"}
ACTION = {"shape": {"dimensions": [2]}, "dtype": "float32", "encoding": "none"}
WINDOW = sr.Window(length=2, pad="start", future={"steps/action": 3})  # 2 pictures, 4 actions
ORDER: Any = {"window": WINDOW, "batch_size": ROWS, "shuffle": True, "epochs": None}


def feature(name: str, **content: Any) -> dict[str, Any]:
    return {"pythonClassName": f"tensorflow_datasets.core.features.{name}", **content}


def group(**features: Any) -> dict[str, Any]:
    return feature("features_dict.FeaturesDict", featuresDict={"features": features})


def write_folder(folder: Path) -> None:
    for shard in range(4):
        with sr.TFRecordWriter(folder / f"dots-train.tfrecord-{shard:05}-of-00004") as writer:
            writer.write_many(episode(16 * shard + i) for i in range(16))
    info = {"name": "dots", "version": "1.0.0", "splits": [SPLIT]}
    (folder / "dataset_info.json").write_text(json.dumps(info))
    observation = group(image=feature("image_feature.Image", image=PICTURE))
    step = group(observation=observation, action=feature("tensor_feature.Tensor", tensor=ACTION))
    steps = feature("dataset_feature.Dataset", sequence={"feature": step, "length": "-1"})
    (folder / "features.json").write_text(json.dumps(group(steps=steps)))


def episode(number: int) -> dict[str, Any]:
    dot, pictures, actions = np.array(divmod(number, SIZE)), [], []
    for _ in range(SIZE):
        picture = np.zeros((SIZE, SIZE, 1), np.uint8)
        picture[tuple(dot)] = 255
        pictures.append(sr.encode_png(picture))
        actions += np.sign(SIZE // 2 - dot).tolist()  # to the middle
        dot += actions[-2:]
    return {"steps/observation/image": pictures, "steps/action": np.array(actions, np.float32)}


def train(folder: Path, steps: int, saved: Path) -> list[Any]:
    """Train some steps, from the saved state if it exists; return each one's windows and loss."""
    weights, seen = np.zeros((2 * SIZE * SIZE, 4 * 2)), []
    with sr.open(folder, split="train", **ORDER) as stream:
        if saved.exists():
            weights[:], state = json.loads(saved.read_text())
            stream.load_state_dict(state)
        for batch in sr.take(stream, steps):
            pictures = batch["steps/observation/image"].reshape(ROWS, -1) / 255
            wrong = pictures @ weights - batch["steps/action"][:, 1:].reshape(ROWS, -1)
            weights -= pictures.T @ wrong / ROWS
            window = [batch.origin.shards, batch.origin.records, batch["window/first"]]
            seen.append((np.transpose(window).tolist(), (wrong**2).mean()))
        saved.write_text(json.dumps([weights.tolist(), stream.state_dict()]))
    return seen


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as name:
        write_folder(folder := Path(name))
        whole = train(folder, STEPS, folder / "whole.json")
        stopped = train(folder, STOP, folder / "stopped.json")
        resumed = train(folder, STEPS - STOP, folder / "stopped.json")
    print(f"loss {whole[0][1]:.4f} at step 1, {whole[-1][1]:.4f} at step {STEPS}")
    assert stopped + resumed == whole
    print(f"stopped after step {STOP} and resumed: the same windows and losses")
