"""Trainings whose every number is kept: a table of cases, each some commands in one folder."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import numpy as np

from tests.golden import kept, running

ZOO = (
    "model=custom model._target_=tests.zoo.{0}.model"
    " dataset=custom dataset._target_=tests.zoo.data.{1}"
)
CLASSES = " trainer.loss=sparse_categorical_crossentropy trainer.metrics=[accuracy]"
USER = "tests.golden.user"
#: Small steps, by which a difference of rounding does not grow.
ALL = (
    "tracking=none record_code=false report=false hydra.run.dir=run launcher.stall_timeout=120"
    " hardware.intra_op_threads=1 optimizer=sgd optimizer.learning_rate=0.01"
    " trainer.log_every_steps=1"
)
LENGTH = "trainer.batch_size=12 trainer.steps_per_epoch=25 trainer.epochs=2"
POINTS = (
    "dataset=synthetic dataset.shape=[8] dataset.classes=4 dataset.examples=100"
    " dataset.validation_examples=21"
)
IMAGES = POINTS.replace("[8]", "[8,8,1]")
MODELS = {
    "mlp": f"model=mlp model.units=[16] model.l2=0.001 {POINTS}",
    "cnn": f"model=cnn model.filters=[4] model.units=8 {IMAGES}",
    "resnet": f"model=resnet model.filters=[4,8] optimizer.learning_rate=0.001 {IMAGES}",
    "transformer": "model=transformer model.width=16 model.heads=2 model.blocks=1 dataset=text"
    " dataset.length=8 trainer.validation_steps=3",
    # Two optimizers; masks; statistics of the batch; noise; a step of its own; recurrence.
    "gan": ZOO.format("gan", "alone") + " objective=g_loss objective_mode=min",
    "masked_tokens": ZOO.format("masked_tokens", "tagged") + CLASSES,
    "batch_normalized": ZOO.format("batch_normalized", "points") + CLASSES,
    "dropout_noise": ZOO.format("dropout_noise", "points") + CLASSES,
    "guide_trackers": ZOO.format("guide_trackers", "lines") + " objective=mae",
    "recurrent": ZOO.format("recurrent", "images") + CLASSES,
}
STRATEGIES = {
    "one_device": "strategy=one_device",
    "mirrored": "strategy=mirrored hardware.devices=2",
    "multiworker": "strategy=multiworker hardware.hosts=2 strategy.communication=ring",
    "ps": "strategy=ps strategy.update=sync strategy.workers=2",
    "hybrid": "strategy=hybrid hardware.devices=4 strategy.mesh.batch=2",
    "jax": "backend=jax strategy=one_device",
    "fsdp": "strategy=fsdp hardware.devices=2",
    "torch": "backend=torch strategy=one_device",
    "torch_mirrored": "backend=torch strategy=mirrored hardware.devices=2",
}
#: Under which strategies each trains, by a letter of each.
WHERE = {
    "mlp": "omwphjft", "cnn": "ompjt", "resnet": "omwh", "transformer": "omphjt", "gan": "omw",
    "masked_tokens": "omwu", "batch_normalized": "omhjtu", "dropout_noise": "ompfu",
    "guide_trackers": "omp", "recurrent": "omjt",
}  # fmt: skip
MLP = f"{MODELS['mlp']} model.dropout=0.2"
KILLED = (
    f"optimizer.use_ema=true trainer.callbacks=[{{_target_:{USER}.Kill}}] checkpoint.every_steps=10"
)
BODY = f"model=custom model._target_={USER}.backbone {POINTS}"
TUNED = (
    f"{BODY} dataset.classes=3 hydra.run.dir=tuned init.weights=run"
    " 'init.rules=[{path: \"^head/\", skip: true}]' 'finetune.freeze=[\"^body/\"]'"
)
#: A module of PyTorch's, with its optimizer and its schedule.
PLAIN = (
    f"{ALL} {LENGTH} {POINTS} {KILLED} backend=torch model=custom model._target_={USER}.plain"
    " optimizer=custom optimizer._target_=torch.optim.AdamW optimizer.learning_rate=0.01"
    " +optimizer.schedule._target_=torch.optim.lr_scheduler.StepLR +optimizer.schedule.step_size=20"
    " trainer.loss=torch.nn.CrossEntropyLoss"
).replace("optimizer.use_ema=true ", "")
#: By name more overrides of a training.
MORE = {
    "accumulation": f"{MLP} optimizer.gradient_accumulation_steps=3",
    "ema": f"{MLP} optimizer.use_ema=true optimizer.ema_overwrite_frequency=20",
    "adam_cosine": f"{MLP} optimizer=adam optimizer/schedule=cosine optimizer.global_clipnorm=1",
    "adamw_warmup": f"{MODELS['cnn']} optimizer=adamw optimizer/schedule=warmup",
    "plateau": f"{MLP} trainer.epochs=5 trainer.steps_per_epoch=10 trainer.callbacks="
    "[{_target_:keras.callbacks.ReduceLROnPlateau,monitor:val_loss,patience:1,min_delta:1}]",
    "class_weight": f"{MLP} 'trainer.class_weight={{0: 1.0, 1: 3.0}}'",
    "weights_and_outputs": f"model=custom model._target_={USER}.two_outputs dataset=custom"
    f" dataset._target_={USER}.weighted objective=val_loss 'trainer.loss={{kind:"
    " sparse_categorical_crossentropy, size: mse}' 'trainer.loss_weights={kind: 1, size: 0.5}'"
    " 'trainer.metrics={kind: accuracy, size: mae}'",
    "augmented": f"{MODELS['cnn']} 'dataset.augment={{_target_: dtrain.augment.shift_flip,"
    " flip: true}'",
    "balanced": f"{MLP} dataset.balance=true",
}
#: As often as each format has it: the numbers of examples are what is learned.
ORDER = (
    f"model=mlp model.units=[8] model.classes=4 trainer.loss={{_target_:{USER}.by_number}}"
    f" trainer.metrics=[{{_target_:{USER}.number}}] objective=val_loss objective_mode=min"
    " trainer.batch_size=2 trainer.steps_per_epoch=50 trainer.epochs=1 strategy=one_device"
)
FORMATS = (
    "npz", "npy", "parquet", "arrow", "huggingface", "tfrecord", "tar files", "array_record",
    "tfds", "csv", "arrays", "map style", "PyDataset", "generator", "tf.data",
)  # fmt: skip
#: What the suite compares; ``make golden`` has all.
SAMPLE = (
    "one_device_cnn", "mirrored_gan", "multiworker_mlp", "ps_transformer", "hybrid_mlp",
    "killed_mirrored", "forked", "tuned_lora", "order_parquet", "order_generator",
)  # fmt: skip


def cases() -> dict[str, list[str]]:
    """Return by name the lines of a case; what is kept is of the last folder that they name."""
    made = {}
    for letter, (strategy, where) in zip("omwphjftu", STRATEGIES.items(), strict=True):
        for model, of in MODELS.items():
            if letter in WHERE[model]:
                made[f"{strategy}_{model}"] = [f"{ALL} {LENGTH} {of} {where}"]
        made[f"killed_{strategy}"] = [
            f"kill=17 {ALL} {LENGTH} {MLP} {KILLED} {where}",
            "resume=run",
        ]
    one, two, hosts = (f"{ALL} {LENGTH} {STRATEGIES[s]}" for s in [*STRATEGIES][:3])
    for name, of in MORE.items():
        made[name] = [f"{two} {of}"]
    made |= {
        "accumulation_multiworker": [f"{hosts} {MORE['accumulation']}"],
        "ema_ps": [f"{ALL} {LENGTH} {STRATEGIES['ps']} {MORE['ema']}"],
        "two_optimizers_killed": [
            f"kill=17 {two} {MODELS['gan']} {KILLED} optimizer.use_ema=false", "resume=run"
        ],
        "plain_fsdp_killed": [
            f"kill=17 {PLAIN} strategy=fsdp hardware.devices=2", "resume=run strategy=mirrored"
        ],
        "central_storage": [f"{one} {MLP} strategy=central_storage hardware.devices=2"],
        "model_parallel": [f"{one} {MLP} strategy=model_parallel hardware.devices=2"],
        "layer_placement": [f"{one} {MLP} strategy=layer_placement hardware.devices=2"],
        "remat": [f"{one} {MODELS['cnn']} 'hardware.remat=[conv2d]'"],
        "longer": [f"{one} {MLP} trainer.epochs=1", "resume=run trainer.epochs=2"],
        "moved": [
            f"{one} {MLP} trainer.epochs=1",
            f"resume=run trainer.epochs=2 {STRATEGIES['mirrored']}",
        ],
        "forked": [
            f"{one} {MLP} trainer.epochs=1 optimizer=adam",
            "fork=run hydra.run.dir=fork optimizer.learning_rate=0.002 trainer.epochs=3",
        ],
        "initial": [f"{two} {BODY}", f"{two} {TUNED} dataset.classes=4 finetune.freeze=[]"],
        "tuned_unfreeze": [
            f"{one} {BODY} trainer.epochs=1",
            f"{two} {TUNED} trainer.steps_per_epoch=10 trainer.epochs=5"
            " 'finetune.unfreeze={3:[\"/two/\"]}'"
            " 'finetune.learning_rates=[{path:\"^body/\",factor:0.1}]'",
        ],
        "tuned_lora": [
            f"{one} {BODY} trainer.epochs=1",
            f"kill=17 {two} {TUNED} 'finetune.lora=[{{path: two, rank: 2}}]' {KILLED}",
            "resume=tuned",
        ],
        "evaluated": [f"{two} {MLP} optimizer.use_ema=true", "evaluate run checkpoint=all",
                      "evaluate run checkpoint=latest weights=ema by=label"],
        "order_text": [f"{one} {MODELS['transformer']} dataset.path=text.txt dataset.length=5"
                       " dataset.tokens=characters trainer.batch_size=2"],
        "order_image_folder": [f"{one} model=mlp model.units=[8] dataset=image_folder"
                               " dataset.path=images dataset.size=[4,4] dataset.channels=1"],
        "order_mixture": [
            f"{ALL} {ORDER} dataset=mixture dataset.weights={{a:0.7,b:0.3}} 'dataset.members={{a:"
            "{_target_:dtrain.datasets.npz,path:rows.npz},b:{_target_:dtrain.datasets.npz,"
            "path:rows.npz}}'"
        ],
    }  # fmt: skip
    for name in FORMATS:
        made[f"order_{name.replace(' ', '_')}"] = [f"{ALL} {ORDER}"]
    return made


def _files(name: str) -> str:
    """Write what an order is of, and return the words that name it."""
    if name == "text":
        Path("text.txt").write_text("".join(chr(97 + i * i % 23) for i in range(600)))
        return ""
    if name == "image_folder":
        from PIL import Image

        for i in range(60):
            folder = Path("images") / "abc"[i % 3]
            folder.mkdir(parents=True, exist_ok=True)
            pixels = np.arange(16, dtype="uint8").reshape(4, 4) * (i % 7) + i
            Image.fromarray(pixels).save(folder / f"{i:02}.png")
        return ""
    from tests.integration import test_formats as rows

    x, y = rows.made()
    np.savez("rows.npz", x=x, y=y, xv=x[: rows.HELD], yv=y[: rows.HELD])
    Path("mine.py").write_text(rows.USER)
    write = {key.replace(" ", "_"): of for key, of in (rows.FORMATS | rows.STREAMS).items()}
    return " ".join(f"'{word}'" for word in write[name](x, y)) if name in write else ""


def trained(name: str) -> dict[str, Any]:
    """Run a case in the current folder, and return what is kept of it."""
    lines = cases()[name]
    if name.startswith("order_"):
        lines = [f"{lines[0]} {_files(name[6:])}"]
    for line in lines:
        code, output = running.line(line)
        if code != (1 if line.startswith("kill=") else 0):
            raise AssertionError(f"{name}: exit code {code} of {line}\n{output}")
    return kept.of_run(Path(re.findall(r"hydra\.run\.dir=(\S+)", " ".join(lines))[-1]))
