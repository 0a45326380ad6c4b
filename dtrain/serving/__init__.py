"""``python -m dtrain serve``: FastAPI in the process that runs the model.

``signature``  inputs and outputs; a request's named columns as inputs, outputs as JSON
``protocols``  the Open Inference Protocol V2 and MLflow's ``/invocations``
``batching``   dynamic batching: a queue, and the thread that runs the model
``server``     the web application, and the process: loads versions, swaps them, runs uvicorn
"""
