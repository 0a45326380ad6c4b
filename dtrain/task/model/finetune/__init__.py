"""Fine-tuning by rules over the paths of weights: which are trained, from when on, how fast.

``weights``   the weights of a model, each with the path of layers that leads to it
``lora``      layers of which a product of two thin matrices is trained (``finetune.lora``)
``stages``    which weights are trained in which epoch (``finetune.freeze``, ``finetune.unfreeze``)
``rates``     factors of the learning rate (``finetune.learning_rates``)
"""
