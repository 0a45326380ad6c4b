"""``python -m dtrain serve``: an HTTP server in front of processes that run a model each.

``signature``  what a model takes and gives
``problems``   what is wrong with a request, and its status
``arrays``     JSON values as arrays of a signature, and back
``v2``         KServe's protocol, with binary tensors
``rows``       TensorFlow Serving's protocol, and MLflow's ``/invocations``
``queue``      requests that wait, and how batches are made of them
``channel``    a process that runs a model, as the server has it
``model``      one version: its process, its queue, its batches
``versions``   which version serves, which one did before, and how another comes to serve
``follow``     takes newer versions from where they appear
``metrics``    counts for Prometheus
``openapi``    the description of all that, and ``page`` a page of it
``endpoints``  what is answered at each address
``app``        the HTTP application, and ``server`` what runs it
"""
