"""``launcher=k8s``: the manifests, against Kubernetes' own schemas and JobSet's own models."""

from __future__ import annotations

import itertools
import re
from pathlib import Path
from typing import Any

import pytest
import yaml

from dtrain.config import schema
from dtrain.config.schema import launchers
from dtrain.errors import UsageError
from dtrain.job import k8s_job
from dtrain.launchers import Kubernetes
from dtrain.launchers.k8s import Object, Workload, render
from dtrain.run.cluster import Cluster, Task
from tests.conftest import QUICK, Commands

PS = (Task("chief", 0, 0), Task("worker", 0, 1), Task("worker", 1, 1), Task("ps", 0, 0))
HOSTS = (Task("chief", 0, 1), Task("worker", 0, 1), Task("worker", 1, 1))
ALONE = (Task("chief", 0, 1),)
#: What a user may ask for.
ASKED: dict[str, dict[str, Any]] = {
    "plain": {},
    "large": {
        "cpus": 3.5, "memory": "16Gi", "gpus": 2, "mounts": ["data:/data", "more:/more"],
        "variables_from": ["tracking"], "queue": "team", "key_from": "mine", "user": 7,
        "pod": {
            "nodeSelector": {"disk": "ssd"}, "securityContext": {"supplementalGroups": [5]},
            "tolerations": [{"key": "gpu", "operator": "Exists"}],
            "volumes": [{"name": "own", "emptyDir": {}}],
            "imagePullSecrets": [{"name": "registry"}],
        },
    },
}  # fmt: skip


def launcher(**asked: Any) -> Kubernetes:
    given = {"image": "registry.example/team/digits:1", "volume": "runs", "kind": "jobset", **asked}
    whole = {**schema.defaults(launchers.Kubernetes), **given}
    return Kubernetes(**{key: value for key, value in whole.items() if key != "_target_"})


def workload(tasks: tuple[Task, ...], kind: str = "cpu") -> Workload:
    cluster = Cluster(tasks, kind, 1, {})
    return Workload("digits", cluster, ["model=mlp", "x=$(HOME)"], "/outputs", {"A": "1"})


def rendered(tasks: tuple[Task, ...], device: str = "cpu", **asked: Any) -> list[Object]:
    return render(launcher(**asked), workload(tasks, device), "k" * 64)


def of_kind(objects: list[Object], kind: str) -> Object:
    [found] = [each for each in objects if each["kind"] == kind]
    return found


def jobs(objects: list[Object]) -> list[Object]:
    """Return the indexed Jobs, those that a JobSet makes among them."""
    found = objects[-1]
    if found["kind"] == "Job":
        return [found]
    return [
        {"apiVersion": "batch/v1", "kind": "Job",
         "metadata": {"name": f"digits-{each['name']}-0", **each["template"]["metadata"]},
         "spec": each["template"]["spec"]}
        for each in found["spec"]["replicatedJobs"]
    ]  # fmt: skip


def pods(objects: list[Object]) -> list[Object]:
    return [each["spec"]["template"]["spec"] for each in jobs(objects)]


@pytest.mark.parametrize(
    ("asked", "version"),
    [
        ("plain", "1.29"),
        ("large", "1.37"),
        pytest.param("large", "1.29", marks=pytest.mark.faults),
        pytest.param("plain", "1.33", marks=pytest.mark.faults),
        pytest.param("large", "1.33", marks=pytest.mark.faults),
        pytest.param("plain", "1.37", marks=pytest.mark.faults),
    ],
)
@pytest.mark.parametrize("kind", ["jobset", "job"])
def test_the_schemas_of_kubernetes_take_everything(kind: str, asked: str, version: str) -> None:
    validate = pytest.importorskip("kubernetes_validate").validate
    for tasks, device in itertools.product((PS, HOSTS, ALONE), ("cpu", "gpu")):
        objects = rendered(tasks, device, kind=kind, **ASKED[asked])
        whole = [each for each in objects if each["kind"] != "JobSet"]
        for each in [*whole, *jobs(objects)]:
            validate(each, version, strict=True)


def test_the_schemas_of_kubernetes_refuse_a_field_that_is_none() -> None:
    kubernetes_validate = pytest.importorskip("kubernetes_validate")
    [job] = [
        each
        for each in rendered(HOSTS, kind="job", pod={"nodeSelectr": {}})
        if "Job" in each["kind"]
    ]
    with pytest.raises(kubernetes_validate.ValidationError, match="nodeSelectr"):
        kubernetes_validate.validate(job, "1.33", strict=True)


@pytest.mark.parametrize("asked", ASKED)
def test_jobsets_own_models_take_everything(asked: str) -> None:
    models = pytest.importorskip("kubeflow_trainer_api.models")
    for tasks in (PS, HOSTS, ALONE):
        jobset = of_kind(rendered(tasks, "gpu", **ASKED[asked]), "JobSet")
        read = models.JobsetV1alpha2JobSet.from_dict(jobset)
        assert not lost(jobset, read.to_dict())  # a model drops what it does not know


def lost(given: Any, kept: Any, place: str = "") -> list[str]:
    """Return the places at which something was given and is not kept."""
    if isinstance(given, dict):
        if not isinstance(kept, dict):
            return [place] if given else []
        return [p for k, v in given.items() for p in lost(v, kept.get(k), f"{place}.{k}")]
    if isinstance(given, list):
        if not isinstance(kept, list) or len(kept) != len(given):
            return [place]
        return [p for n, (a, b) in enumerate(zip(given, kept, strict=True))
                for p in lost(a, b, f"{place}[{n}]")]  # fmt: skip
    return [] if given == kept else [f"{place}: {given!r}, {kept!r}"]


def test_a_job_of_a_jobset_is_a_task_in_the_order_of_their_numbers() -> None:
    found = of_kind(rendered(PS), "JobSet")["spec"]["replicatedJobs"]
    assert [(each["name"], each["replicas"]) for each in found] == [
        ("chief", 1), ("worker", 2), ("ps", 1),
    ]  # fmt: skip
    assert all(each["template"]["spec"]["completions"] == 1 for each in found)


def test_an_interruption_is_free_and_a_wrong_configuration_final() -> None:
    """Each rule for pods is at the place that the rules for jobs refer to."""
    spec = of_kind(rendered(HOSTS), "JobSet")["spec"]
    usage, interrupted = spec["failurePolicy"]["rules"]
    for job in spec["replicatedJobs"]:
        rules = job["template"]["spec"]["podFailurePolicy"]["rules"]
        codes = [rule.get("onExitCodes", {}).get("values") for rule in rules]
        assert codes == [[2], [75], None]
        # As Kubernetes words it (pkg/controller/job/pod_failure_policy.go).
        said = "Container dtrain for pod n/p failed with exit code {} matching FailJob rule at {}"
        [pattern] = usage["onJobFailureMessagePatterns"]
        assert re.search(pattern, said.format(2, "index 0"))
        assert not re.search(pattern, said.format(75, "index 1"))
        assert job["template"]["spec"]["backoffLimit"] == 0
    assert usage["action"] == "FailJobSet"
    assert interrupted["action"] == "RestartJobSetAndIgnoreMaxRestarts"
    assert "onJobFailureMessagePatterns" not in interrupted
    job = of_kind(rendered(HOSTS, kind="job"), "Job")["spec"]
    assert [rule["action"] for rule in job["podFailurePolicy"]["rules"]] == [
        "FailJob", "Ignore", "Ignore",
    ]  # fmt: skip
    assert job["backoffLimit"] == 3 * len(HOSTS)


def test_a_command_on_a_run_folder_is_not_for_pods() -> None:
    with pytest.raises(UsageError, match="type: launcher=local"):
        launcher().here()


def test_the_ports_are_closed_to_all_but_the_pods_of_the_job() -> None:
    for kind in ("jobset", "job"):
        objects = rendered(HOSTS, kind=kind)
        spec = of_kind(objects, "NetworkPolicy")["spec"]
        assert spec["policyTypes"] == ["Ingress"]
        [only] = spec["ingress"]
        assert only == {"from": [{"podSelector": spec["podSelector"]}]}  # of any port
        for job in jobs(objects):
            labels = job["spec"]["template"]["metadata"]["labels"]
            assert spec["podSelector"]["matchLabels"].items() <= labels.items()


def test_what_a_pod_may_do_is_little() -> None:
    for pod in pods(rendered(HOSTS)):
        assert pod["securityContext"]["runAsNonRoot"] is True
        assert pod["automountServiceAccountToken"] is False
        [container] = pod["containers"]
        assert container["securityContext"] == {
            "allowPrivilegeEscalation": False, "capabilities": {"drop": ["ALL"]},
        }  # fmt: skip


def test_the_key_is_in_the_secret_alone() -> None:
    objects = rendered(HOSTS)
    assert of_kind(objects, "Secret")["stringData"] == {"key": "k" * 64}
    rest = [each for each in objects if each["kind"] != "Secret"]
    assert "k" * 64 not in k8s_job.text(rest)
    assert not [each for each in rendered(HOSTS, key_from="mine") if each["kind"] == "Secret"]
    for pod in pods(rendered(HOSTS, key_from="mine")):
        [key] = [e for e in pod["containers"][0]["env"] if e["name"] == "DTRAIN_CLUSTER_KEY"]
        assert key["valueFrom"] == {"secretKeyRef": {"name": "mine", "key": "key"}}


def test_a_job_of_one_pod_meets_no_other() -> None:
    assert [each["kind"] for each in rendered(ALONE)] == ["JobSet"]
    assert [each["kind"] for each in rendered(ALONE, kind="job")] == ["Job"]
    [pod] = pods(rendered(ALONE))
    assert "readinessProbe" not in pod["containers"][0]


def test_the_run_folder_is_mounted_where_the_chief_is() -> None:
    for job in jobs(rendered(PS)):
        role = job["metadata"]["name"].split("-")[1]
        [runs] = [v for v in job["spec"]["template"]["spec"]["volumes"] if v["name"] == "runs"]
        assert ("persistentVolumeClaim" in runs) == (role == "chief")


def test_gpus_are_asked_for_where_they_compute() -> None:
    limits = [
        pod["containers"][0]["resources"].get("limits") for pod in pods(rendered(PS, "gpu", gpus=2))
    ]
    assert limits == [None, {"nvidia.com/gpu": "2"}, None]
    assert [p["containers"][0]["resources"] for p in pods(rendered(PS, "cpu", gpus=2))] == [{}] * 3


def test_the_grace_of_a_pod_is_longer_than_the_commands() -> None:
    for pod in pods(rendered(HOSTS)):
        assert pod["terminationGracePeriodSeconds"] == 60


def test_kubernetes_puts_no_variable_into_an_argument() -> None:
    for pod in pods(rendered(HOSTS)):
        assert pod["containers"][0]["args"] == ["model=mlp", "x=$$(HOME)"]


def test_kueue_starts_what_is_in_its_queue() -> None:
    for kind in ("jobset", "job"):
        job = rendered(HOSTS, kind=kind, queue="team")[-1]
        assert job["spec"]["suspend"] is True
        assert job["metadata"]["labels"]["kueue.x-k8s.io/queue-name"] == "team"


def test_the_users_fields_are_merged_into_the_pods() -> None:
    for pod in pods(rendered(HOSTS, **ASKED["large"])):
        assert pod["nodeSelector"] == {"disk": "ssd"}
        assert pod["securityContext"]["supplementalGroups"] == [5]
        assert pod["securityContext"]["runAsNonRoot"] is True
        assert {"name": "own", "emptyDir": {}} in pod["volumes"]
        assert len(pod["volumes"]) == 6


# --- the command


K8S = (*QUICK, "launcher=k8s", "launcher.image=digits:1", "launcher.volume=runs")
MULTI = ("strategy=multiworker", "hardware.hosts=3", "trainer.batch_size=48")


def documents(text: str) -> list[Object]:
    return [each for each in yaml.safe_load_all(text[text.index("apiVersion:") :])]


def test_a_dry_run_prints_what_kubectl_takes(dtrain: Commands) -> None:
    done = dtrain(*K8S, *MULTI, "dry_run=true", "launcher.job_name=digits")
    assert done.code == 0, done.output
    objects = documents(done.output)
    assert [each["kind"] for each in objects] == ["Secret", "NetworkPolicy", "JobSet"]
    for pod in pods(objects):
        [container] = pod["containers"]
        args = container["args"]
        assert args[0] == "tracking=none"
        assert not [each for each in args if "k8s" in each or "image" in each]
        assert args[-4:] == [
            "launcher=auto", "output_dir=/outputs", "hydra.run.dir=/outputs/kubernetes/digits",
            "resume=auto",
        ]  # fmt: skip
        assert args.count("hardware.hosts=3") == 1
    assert not Path("outputs").exists()


def test_run_folders_are_where_a_preset_says(dtrain: Commands) -> None:
    Path("own/experiment").mkdir(parents=True)
    Path("own/experiment/mine.yaml").write_text("# @package _global_\noutput_dir: results/a\n")
    done = dtrain("--config-dir=own", *K8S, "experiment=mine", "dry_run=true")
    assert done.code == 0, done.output
    [container] = pods(documents(done.output))[0]["containers"]
    assert "output_dir=/results/a" in container["args"]
    assert {"name": "runs", "mountPath": "/results/a"} in container["volumeMounts"]
    done = dtrain(*K8S, "output_dir=s3://bucket/x", "dry_run=true")
    assert done.code == 2 and "on the volume of launcher.volume" in done.output


def test_tensorflow_has_as_many_threads_as_a_pod_has_cores(dtrain: Commands) -> None:
    done = dtrain(*K8S, "launcher.cpus=1.5", "hardware.inter_op_threads=1", "dry_run=true")
    assert done.code == 0, done.output
    [pod] = pods(documents(done.output))
    args = pod["containers"][0]["args"]
    assert sorted(each for each in args if "op_threads" in each) == [
        "hardware.inter_op_threads=1", "hardware.intra_op_threads=2",
    ]  # fmt: skip


def test_a_pod_has_the_processes_of_its_host(dtrain: Commands) -> None:
    """Those of one host the command in the pod starts; on several it is one process itself."""
    torch = ("backend=torch", "launcher.cpus=4", "hardware.devices=2")
    done = dtrain(*K8S, *torch, "strategy=mirrored", "dry_run=true")
    assert done.code == 0, done.output
    [pod] = pods(documents(done.output))
    assert {"launcher=local", "hardware.intra_op_threads=2"} <= set(pod["containers"][0]["args"])
    done = dtrain(*K8S, *torch, "strategy=multiworker", "dry_run=true")
    assert "type: hardware.devices=1 launcher.gpus=1 hardware.hosts=4" in done.output
    done = dtrain(*K8S, "backend=jax", "launcher.cpus=4", "dry_run=true")
    assert "intra_op_threads=4" in done.output and "inter_op" not in done.output


def test_a_manifest_is_written_for_its_user_alone(dtrain: Commands) -> None:
    done = dtrain(*K8S, *MULTI, "launcher.job_name=digits")
    assert done.code == 0, done.output
    path = Path("outputs/kubernetes/digits.yaml")
    assert path.stat().st_mode & 0o777 == 0o600
    assert f"kubectl apply -f {path.absolute()}" in done.output
    [*_, job] = yaml.safe_load_all(path.read_text())
    assert job["metadata"]["name"] == "digits"
    dtrain(*K8S, *MULTI, "launcher.job_name=digits", "launcher.kind=job")
    assert [each["kind"] for each in yaml.safe_load_all(path.read_text())] == [
        "Secret", "NetworkPolicy", "Service", "Job",
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("given", "said"),
    [
        (["launcher.image=null"], "launcher.image=null: pods start from an image"),
        (["launcher.volume=null"], "launcher.volume=null: the run folder would be lost"),
        (["launcher.job_name=Digits"], "launcher.job_name=Digits: is no name that Kubernetes"),
        (["launcher.mounts=[data]"], "is not CLAIM:/PATH"),
        (["launcher.memory=16GB"], "launcher.memory=16GB: is no quantity of memory"),
        (["launcher.user=0"], "launcher.user=0: must be at least 1"),
        (["hydra.run.dir=x"], "the run folder is in the cluster"),
        (
            ["tracking.uri=http://me:hunter2hunter2@host"],
            "a secret that is typed would be in the manifest",
        ),
        (["launcher.gpus=1", "hardware=gpu", "hardware.devices=2"], "hardware.devices=2"),
        (["-m", "seed=1,2"], "cannot run one job beside another"),
    ],
)
def test_what_cannot_be_is_said_in_a_sentence(
    dtrain: Commands, given: list[str], said: str
) -> None:
    options = [each for each in given if each.startswith("-")]
    rest = [each for each in given if not each.startswith("-")]
    done = dtrain(*options, *K8S, *rest)
    assert done.code == 2, done.output
    assert said in done.output
    assert "hunter2" not in done.output
    assert not Path("outputs/kubernetes").exists()


def test_a_variable_comes_from_a_secret(dtrain: Commands, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("STORE_PASSWORD", "hunter2hunter2")
    given = (*K8S, "tracking=mlflow", "tracking.uri='http://me:${oc.env:STORE_PASSWORD}@store'",
             "dry_run=true")  # fmt: skip
    refused = dtrain(*given)
    assert refused.code == 2
    assert "the pods have no variable STORE_PASSWORD" in refused.output
    done = dtrain(*given, "launcher.variables_from=[store]")
    assert done.code == 0, done.output
    [pod] = pods(documents(done.output))
    assert pod["containers"][0]["envFrom"] == [{"secretRef": {"name": "store"}}]
    assert "${oc.env:STORE_PASSWORD}" in done.output
    assert "hunter2" not in done.output + refused.output


def test_what_is_trusted_here_is_trusted_there(
    dtrain: Commands, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("DTRAIN_TRUST", "mine")
    Path("presets").mkdir()
    done = dtrain("--config-dir=presets", *K8S, "dry_run=true")
    assert done.code == 0, done.output
    [pod] = pods(documents(done.output))
    [container] = pod["containers"]
    assert {"name": "DTRAIN_TRUST", "value": "mine"} in container["env"]
    assert container["args"][0] == "--config-dir=presets"
    assert "launcher=local" in container["args"]
