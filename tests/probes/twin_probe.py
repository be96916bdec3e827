"""The same networks in both frameworks, one framework a process: run by tests/test_twins.py.

``python twin_probe.py tensorflow FOLDER`` draws weights and inputs, writes them and what came out; then
``python twin_probe.py torch FOLDER`` copies the weights, computes the same, and prints how far both are apart.
"""

from __future__ import annotations

import dataclasses
import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from harness import data as datasets
from harness import techniques, workloads
from harness.spec import Cell, Framework, Mode, Optimizer, Workload

CLASSES = 10
SIZES = {"image": 64, "text": 16}
BATCH = 4
STEPS = 5
COPIED = ("cnn_fashion", "resnet50", "text_small")  # the others: another padding, or the same code in another size
SEEDS = (0, 1)
LIMIT = (2000, 1000)
EPOCHS = 3


def size_of(name: str) -> int:
    workload = workloads.load(name)
    return workload.size["cpu"] if name == "cnn_fashion" else SIZES[workload.task]


def recipe(workload: Workload) -> Optimizer:
    """The workload's optimizer, slow enough for a single batch to be learned smoothly."""
    return dataclasses.replace(workload.optimizer, learning_rate=0.002 * workload.optimizer.learning_rate)


def inputs(name: str) -> tuple[Any, Any]:
    """A batch: images in Keras' order of axes, or tokens of which the last rows end in padding."""
    workload, size, random = workloads.load(name), size_of(name), np.random.default_rng(5)
    labels = random.integers(0, CLASSES, BATCH)
    if workload.task == "image":
        return random.normal(size=(BATCH, size, size, workload.channels)).astype(np.float32), labels
    tokens = random.integers(3, datasets.VOCABULARY, (BATCH, size)).astype(np.int32)
    tokens[:, 0] = 2
    tokens[2:, size // 2 :] = 0
    return tokens, labels


def convergence_cell(framework: Framework) -> Cell:
    toggles = {name: toggle.default for name, toggle in techniques.TOGGLES.items()}
    return Cell(
        study="test",
        mode=Mode.CONVERGENCE,
        comparison="test",
        arm="arm",
        framework=framework,
        workload="cnn_fashion",
        size=28,
        toggles={**toggles, "device": "cpu", "batch": "64"},
    )


def accuracies(backend: Any, framework: Framework) -> list[float]:
    """Test accuracy of each seed after some epochs."""
    found = []
    for seed in SEEDS:
        session = backend.open_session(convergence_cell(framework), seed=seed, data_limit=LIMIT)
        for epoch in range(1, EPOCHS + 1):
            session.train_epoch(epoch)
        found.append(session.evaluate().accuracy)
    return found


def in_tensorflow(folder: Path) -> dict[str, Any]:
    """Build, write weights, inputs and outputs; report counts and starts."""
    from harness.backends import tensorflow_backend as backend
    from harness.backends.tensorflow_step import Step, build_optimizer, compile_model, keras

    backend.configure(2)
    keras.utils.set_random_seed(1)
    report: dict[str, Any] = {"parameters": {}, "starts": {}}
    for name in workloads.stepped(Framework.TORCH):
        workload, random = workloads.load(name), np.random.default_rng(3)
        model = workloads.part(name, Framework.TENSORFLOW).build(workload, size_of(name), CLASSES)
        report["parameters"][name] = sum(int(np.prod(v.shape)) for v in model.trainable_variables)
        report["starts"][name] = deviations(v.numpy() for v in model.trainable_variables)
        if name not in COPIED:
            continue
        for v in model.weights:  # what starts at 0 or 1 would hide a wrong epsilon, order or bias
            if v.path.rsplit("/")[-1] in ("bias", "beta", "gamma", "moving_mean", "moving_variance"):
                v.assign(random.uniform(0.5, 1.5, v.shape).astype(np.float32) * (1 if "mean" not in v.path else 0.1))
        x, y = inputs(name)
        weights = {
            v.path.partition("/")[2] if v.path.startswith("sequential") else v.path: v.numpy() for v in model.weights
        }
        logits = np.asarray(model(x, training=False))
        losses = []
        if name == "cnn_fashion":
            compile_model(model, build_optimizer(recipe(workload)), Step())
            for _ in range(STEPS):
                model.reset_metrics()
                losses.append(float(model.train_on_batch(x, y)))
        np.savez(folder / f"{name}.npz", __x=x, __y=y, __logits=logits, __losses=np.array(losses), **weights)
    report["accuracy"] = accuracies(backend, Framework.TENSORFLOW)
    return report


def deviations(weights: Iterator[Any]) -> list[float]:
    """The deviation of each tensor of weights, in order of size; what starts constant (biases, scales) left out."""
    return sorted(deviation for w in weights if np.ndim(w) > 1 and (deviation := float(np.std(w))) > 0)


_TEXT = {
    "token_and_position_embedding/token_embedding": "encoder.embeddings.word_embeddings",
    "token_and_position_embedding/position_embedding": "encoder.embeddings.position_embeddings",
    "embeddings_layer_norm": "encoder.embeddings.LayerNorm",
    "self_attention_layer/query": "attention.q_lin",
    "self_attention_layer/key": "attention.k_lin",
    "self_attention_layer/value": "attention.v_lin",
    "self_attention_layer/attention_output": "attention.out_lin",
    "self_attention_layer_norm": "sa_layer_norm",
    "feedforward_layer_norm": "output_layer_norm",
    "feedforward_intermediate_dense": "ffn.lin1",
    "feedforward_output_dense": "ffn.lin2",
}
_HEADS = {"cnn_fashion": ["7"], "resnet50": ["fc"], "text_small": ["head.0", "head.3"]}
_KINDS = {
    "kernel": "weight",
    "embeddings": "weight",
    "gamma": "weight",
    "bias": "bias",
    "beta": "bias",
    "moving_mean": "running_mean",
    "moving_variance": "running_var",
}


def module_of(name: str, layer: str) -> str:
    """The PyTorch module of a Keras layer that is not a dense layer of the head."""
    if name == "cnn_fashion":
        return {"conv2d": "0", "conv2d_1": "3"}[layer]
    if name == "text_small":
        block, _, part = layer.partition("/")
        number = block.removeprefix("transformer_layer_")
        return f"encoder.transformer.layer.{number}.{_TEXT[part]}" if number != block else _TEXT[layer]
    *place, kind = layer.split("_")
    if place == ["conv1"]:
        return {"conv": "conv1", "bn": "bn1"}[kind]
    stack, block, number = place
    inner = f"{kind}{number}" if number != "0" else {"conv": "downsample.0", "bn": "downsample.1"}[kind]
    return f"layer{int(stack.removeprefix('stack')) + 1}.{block.removeprefix('block')}.{inner}"


def converted(name: str, key: str, value: Any, shape: tuple[int, ...]) -> Any:
    """A Keras weight in PyTorch's order of axes."""
    if not key.endswith("kernel"):
        return value.reshape(shape)
    if value.ndim == 4:
        return value.transpose(3, 2, 0, 1)
    if name == "cnn_fashion":  # flattened from [h, w, c] there and from [c, h, w] here
        edge = size_of(name) // 4
        return value.reshape(edge, edge, -1, CLASSES).transpose(3, 2, 0, 1).reshape(shape)
    return value.reshape(shape[1], shape[0]).T


def copied(name: str, arrays: Any, model: Any) -> dict[str, Any]:
    """The state of a PyTorch model that holds a Keras model's weights."""
    state, heads = model.state_dict(), list(_HEADS[name])
    found = {k: v for k, v in state.items() if k.endswith("num_batches_tracked")}
    for key in arrays.files:
        if key.startswith("__"):
            continue
        layer, _, kind = key.rpartition("/")
        if layer.startswith("dense"):
            module = heads[0] if kind == "kernel" else heads.pop(0)
        else:
            module = module_of(name, layer)
        target = f"{module}.{_KINDS[kind]}"
        found[target] = converted(name, key, arrays[key], tuple(state[target].shape))
    return found


def in_torch(folder: Path) -> dict[str, Any]:
    """Build, copy the weights, compute the same; report counts, starts and distances."""
    import torch  # noqa: TID251 - one framework a process

    from harness.backends import torch_backend as backend
    from harness.backends.torch_step import Step, build_optimizer

    backend.configure(2)
    torch.manual_seed(1)
    report: dict[str, Any] = {"parameters": {}, "starts": {}, "apart": {}, "losses": {}}
    for name in workloads.stepped(Framework.TORCH):
        workload = workloads.load(name)
        model = workloads.part(name, Framework.TORCH).build(workload, size_of(name), CLASSES)
        report["parameters"][name] = sum(p.numel() for p in model.parameters())
        report["starts"][name] = deviations(p.detach().numpy() for p in model.parameters())
        if name not in COPIED:
            continue
        arrays = np.load(folder / f"{name}.npz")
        state = {k: torch.as_tensor(np.ascontiguousarray(v)) for k, v in copied(name, arrays, model).items()}
        model.load_state_dict(state, strict=True)
        x, y = torch.from_numpy(arrays["__x"]), torch.from_numpy(arrays["__y"])
        x = x.permute(0, 3, 1, 2).contiguous() if workload.task == "image" else x
        with torch.inference_mode():
            logits = model.eval()(x).numpy()
        report["apart"][name] = float(np.abs(logits - arrays["__logits"]).max() / np.abs(logits).max())
        optimizer = build_optimizer(recipe(workload), model.train())
        losses = [float(Step().run(model, optimizer, x, y)) for _ in arrays["__losses"]]
        report["losses"][name] = [losses, arrays["__losses"].tolist()]
    report["accuracy"] = accuracies(backend, Framework.TORCH)
    return report


if __name__ == "__main__":
    run = {"tensorflow": in_tensorflow, "torch": in_torch}[sys.argv[1]]
    print(json.dumps(run(Path(sys.argv[2]))))  # noqa: T201 - the report
