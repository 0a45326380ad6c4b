"""What a job runs on: devices, and what this machine can hold."""
