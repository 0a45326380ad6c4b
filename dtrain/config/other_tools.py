"""Names of other tools, and what is typed here in their place.

The one table of its kind: messages read it, and the tables of docs/coming-from.md hold the same.
"""

from __future__ import annotations

_EARLY = "'trainer.early_stopping={monitor:val_loss,patience:3}'"
_PATIENCE = "'trainer.early_stopping={monitor:val_loss,patience:VALUE}'"
_OWN_TRACKER = "tracking=mlflow, or a tracker of your own (docs/extending.md)"
_TENSORBOARD = "the command without it: files for TensorBoard are always written"
_TFDS = "dataset=tfds dataset.builder"
_WARMUP = "optimizer/schedule=warmup optimizer.schedule.warmup_epochs=1"
_RESNET = "model=custom model._target_=keras.applications.ResNet50 +model.weights=null"
_FLOAT16, _BFLOAT16 = "hardware.precision=mixed_float16", "hardware.precision=mixed_bfloat16"

#: By tool: what is typed there, and here. On the left stand a key, by its last part or with the
#: group that it is of, a group with a dot behind it, or one value of a key here (``strategy=ddp``).
#: On the right stand a key here, which keeps the value; overrides, with VALUE in its place; or a
#: clause that is no override.
TOOLS: dict[str, dict[str, str]] = {
    "Keras": {
        "lr": "optimizer.learning_rate",
        "monitor": "objective",
        "patience": _PATIENCE,
        "early_stopping": _EARLY,
        "dataset.validation_split": "(train, validation), returned by the function of your data",
        "trainer.callbacks=early_stopping": _EARLY,
        "trainer.callbacks=null": "'trainer.callbacks=[]'",
        "trainer.metrics=null": "'trainer.metrics=[]'",
        "val_split": "dataset.validation_split",
        "validation_data": "dataset.validation=FILE, or a second part of your dataset",
        "verbose": "the command without it: a file gets fewer lines than a terminal",
        "mixed_precision": "hardware.precision",
        "optimizer/schedule=reduce_on_plateau":
            "'trainer.callbacks=[{_target_:keras.callbacks.ReduceLROnPlateau,patience:3}]'",
        "optimizer/schedule=none": "optimizer/schedule=constant",
        "trainer.loss=crossentropy": "trainer.loss=sparse_categorical_crossentropy",
        "trainer.loss=bce": "trainer.loss=binary_crossentropy",
        "model=resnet50": _RESNET,
        "model=mobilenet": _RESNET.replace("ResNet50", "MobileNetV2"),
        "dataset=mnist": f"{_TFDS}=mnist",
        "dataset=cifar10": f"{_TFDS}=cifar10",
        "dataset=imagenet": "dataset=image_folder dataset.path=FOLDER",
        "to=saved_model": "to=savedmodel",
        "debug=true": "debug=one_batch",
        "resume=true": "resume=auto",
    },
    "tf.distribute": {
        "strategy=multi_worker": "strategy=multiworker",
        "strategy=parameter_server": "strategy=ps",
        "strategy=none": "strategy=default",
        "gpu": "hardware.devices",
        "num_workers": "dataset.workers",
    },
    "Lightning": {
        "max_epochs": "trainer.epochs",
        "max_steps": "trainer.epochs=1 trainer.steps_per_epoch=VALUE",
        "max_time": "trainer.max_time",
        "gpus": "hardware.devices",
        "num_nodes": "hardware.hosts",
        "accelerator": "hardware",
        "device": "hardware",
        "tracking_uri": "tracking.uri",
        "experiment_name": "tracking.experiment",
        "hardware=cuda": "hardware=gpu",
        "hardware.devices=auto": "hardware.devices=null",
        "precision": "hardware.precision",
        "hardware.precision=16": _FLOAT16,
        "hardware.precision=32": "hardware.precision=float32",
        "gradient_clip_val": "optimizer.global_clipnorm",
        "accumulate_grad_batches": "optimizer.gradient_accumulation_steps",
        "limit_train_batches": "trainer.steps_per_epoch",
        "limit_val_batches": "trainer.validation_steps",
        "check_val_every_n_epoch": "trainer.validation_freq",
        "log_every_n_steps": "trainer.log_every_steps",
        "fast_dev_run": "debug=one_batch",
        "overfit_batches": "debug=overfit",
        "detect_anomaly": "debug=nan",
        "profiler": "'tracking.profile_steps=[20,29]'",
        "default_root_dir": "output_dir",
        "ckpt_path": "resume",
        "save_top_k": "checkpoint.keep",
        "enable_progress_bar": "the command without it: a file gets fewer lines than a terminal",
        "seed_everything": "seed",
        "strategy=ddp": "strategy=mirrored",
        "strategy=auto": "strategy=default",
        "logger": "tracking",
        "tracking=wandb": _OWN_TRACKER,
        "tracking=tensorboard": _TENSORBOARD,
        "tracking=null": "tracking=none",
        "wandb": _OWN_TRACKER,
    },
    "lightning-hydra-template": {
        "callbacks": "trainer.callbacks",
        "scheduler": "optimizer/schedule",
        "compile": "hardware.jit_compile",
    },
    "Hugging Face": {
        "num_train_epochs": "trainer.epochs",
        "per_device_train_batch_size": "trainer.batch_size=VALUE times the number of devices",
        "per_device_eval_batch_size": "trainer.validation_batch_size",
        "dataloader_num_workers": "dataset.workers",
        "max_grad_norm": "optimizer.global_clipnorm",
        "lr_scheduler_type": "optimizer/schedule",
        "warmup_steps": _WARMUP,
        "eval_strategy": "trainer.validation_freq=1, in epochs",
        "logging_steps": "trainer.log_every_steps",
        "save_steps": "checkpoint.every_steps",
        "save_total_limit": "checkpoint.keep",
        "load_best_model_at_end": "checkpoint.best",
        "metric_for_best_model": "objective",
        "resume_from_checkpoint": "resume",
        "report_to": "tracking",
        "run_name": "name",
        "gradient_checkpointing": "'hardware.remat=[LAYER]'",
        "fp16": _FLOAT16,
        "bf16": _BFLOAT16,
        "torch_compile": "trainer.compile",
    },
    "Accelerate": {
        "num_processes": "hardware.devices",
        "hardware.precision=fp16": _FLOAT16,
        "hardware.precision=bf16": _BFLOAT16,
        "hardware.precision=fp32": "hardware.precision=float32",
        "strategy=deepspeed": "strategy=hybrid",
    },
}  # fmt: skip
KEYS = {theirs: ours for rows in TOOLS.values() for theirs, ours in rows.items()
        if "=" not in theirs}  # fmt: skip
VALUES = {theirs: ours for rows in TOOLS.values() for theirs, ours in rows.items()
          if "=" in theirs}  # fmt: skip
#: Commands of other tools; what is typed behind them stays.
COMMANDS = {
    "train": "", "fit": "", "run": "",
    "test": "evaluate", "eval": "evaluate", "validate": "evaluate", "val": "evaluate",
    "infer": "predict", "inference": "predict", "convert": "export", "deploy": "serve",
    "register": "promote", "list": "compare outputs", "ls": "compare outputs", "mlflow": "ui",
    "find_lr": "-m optimizer.learning_rate=0.0001,0.001,0.01",
    "summary": "data --layers", "overfit": "debug=overfit", "check": "dry_run=true",
    "config": "--cfg job", "help": "--help", "version": "--version", "env": "doctor",
    "inspect": "data", "dataset_info": "data", "reproduce": "replay",
}  # fmt: skip
#: Options that other tools have, by the command here; and the words that are typed for them.
WORDS = {
    "predict": {"output": "to", "out": "to", "format": "predict.format"},
    "export": {"format": "to", "output": "folder", "out": "folder"},
    "serve": {"port": "port", "host": "host"},
    "evaluate": {"checkpoint": "checkpoint", "ckpt": "checkpoint", "weights": "weights"},
}  # fmt: skip
