"""Jobs of Kubernetes: their manifests, what creates them, and what becomes of their pods."""
