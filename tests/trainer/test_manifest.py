"""`gradwire manifest`: every manifest fits the published schemas and says what the guide says."""

import re
import shlex
from pathlib import Path

import pytest
import yaml
from jsonschema import Draft202012Validator, ValidationError
from kubeflow_trainer_api import models

from tests.trainer.commands import gradwire

ROOT = Path(__file__).parents[2]
SHELL = "".join(
    re.findall(r"^```sh\n(.*?)^```", (ROOT / "docs" / "kubernetes.md").read_text(), re.DOTALL | re.MULTILINE)
)
COMMANDS = [line.partition(" >")[0] for line in SHELL.splitlines() if not line.endswith("# not run here")]
SCHEMAS = {
    "Job": models.IoK8sApiBatchV1Job,
    "Service": models.IoK8sApiCoreV1Service,
    "JobSet": models.JobsetV1alpha2JobSet,
}
IMAGE = ("--image", "registry.example/train:1")
CLAIM = ("--claim", "runs:/runs")


def strict(node):
    """A schema that also refuses unknown keys, nulls and unlisted values, as the API server does."""
    if isinstance(node, list):
        return [strict(each) for each in node]
    if not isinstance(node, dict):
        return node
    if "actual_instance" in node.get("properties", {}):  # a quantity, or a port by number or name
        return {"type": ["string", "number"]}
    made = {key: strict(value) for key, value in node.items() if key != "default"}
    made["anyOf"] = [each for each in made.get("anyOf", []) if each != {"type": "null"}] or [True]
    if "properties" in node:
        made["additionalProperties"] = False
    if values := re.findall(r'- `"(\w+)"`', str(node.get("description"))):
        made["enum"] = values
    return made


VALIDATORS = {
    kind: Draft202012Validator(strict(model.model_json_schema(by_alias=True))) for kind, model in SCHEMAS.items()
}


def printed(*arguments):
    """The objects of a manifest, checked."""
    done = gradwire("manifest", *arguments)
    assert done.returncode == 0, done.stderr
    objects = list(yaml.safe_load_all(done.stdout))
    for each in objects:
        VALIDATORS[each["kind"]].validate(each)
    return objects


def job_of(objects):
    """The Job, or the JobSet's one, and its container."""
    last = objects[-1]
    spec = last["spec"] if last["kind"] == "Job" else last["spec"]["replicatedJobs"][0]["template"]["spec"]
    return spec, spec["template"]["spec"]["containers"][0]


@pytest.mark.parametrize("command", COMMANDS)
def test_the_commands_of_the_guide_print_what_fits_the_schemas(command):
    program, verb, *rest = shlex.split(command)
    assert (program, verb) == ("gradwire", "manifest") and printed(*rest)


@pytest.mark.parametrize(
    ("change", "kind"),
    [
        (lambda job: job["spec"].update(backofLimit=1), "Job"),
        (lambda job: job["spec"].update(completionMode="Numbered"), "Job"),
        (lambda job: job["spec"].update(parallelism="2"), "Job"),
        (lambda job: job["spec"]["podFailurePolicy"]["rules"][0].pop("action"), "Job"),
        (lambda jobs: jobs["spec"]["failurePolicy"].update(maxRestart=1), "JobSet"),
        (lambda jobs: jobs["spec"]["replicatedJobs"][0].pop("template"), "JobSet"),
    ],
)
def test_the_schemas_see_a_wrong_manifest(change, kind):
    (made,) = printed("--kind", kind.lower(), *IMAGE, *CLAIM)
    change(made)
    with pytest.raises(ValidationError):
        VALIDATORS[kind].validate(made)


@pytest.mark.parametrize(("kind", "first"), [("job", "big-0.big"), ("jobset", "big-host-0-0.big")])
def test_pods_are_hosts_that_meet_at_the_first_one(kind, first):
    objects = printed("--kind", kind, "--name", "big", *IMAGE, *CLAIM, "launch.hosts=4", "model=decoder_1m")
    job, container = job_of(objects)
    assert (job["completionMode"], job["completions"], job["parallelism"]) == ("Indexed", 4, 4)
    assert container["command"][:5] == ["gradwire", "train", "--resume", "launch.hosts=4", "model=decoder_1m"]
    assert {f"launch.endpoint={first}:29400", "run.dir=/runs/big"} <= set(container["command"])
    assert container["ports"][0]["containerPort"] == 29400
    if kind == "job":
        service = objects[0]["spec"]
        assert service["clusterIP"] == "None" and service["publishNotReadyAddresses"]
        assert job["template"]["spec"]["subdomain"] == objects[0]["metadata"]["name"] == "big"
    else:
        network = objects[0]["spec"]["network"]
        assert network == {"enableDNSHostnames": True, "publishNotReadyAddresses": True, "subdomain": "big"}


@pytest.mark.parametrize("kind", ["job", "jobset"])
def test_75_and_disruptions_retry_and_mistakes_do_not(kind):
    objects = printed("--kind", kind, "--retries", "5", *IMAGE, *CLAIM, "launch.hosts=4")
    job, container = job_of(objects)
    hopeless, preempted, disrupted = job["podFailurePolicy"]["rules"]
    assert (hopeless["action"], hopeless["onExitCodes"]["values"]) == ("FailJob", [2, 3])
    assert (preempted["action"], preempted["onExitCodes"]["values"]) == ("Ignore", [75])
    assert disrupted == {"action": "Ignore", "onPodConditions": [{"type": "DisruptionTarget", "status": "True"}]}
    assert {each["onExitCodes"]["containerName"] for each in (hopeless, preempted)} == {container["name"]}
    assert job["template"]["spec"]["restartPolicy"] == "Never"
    if kind == "job":
        assert job["backoffLimit"] == 20
        return
    policy = objects[0]["spec"]["failurePolicy"]
    (rule,) = policy["rules"]
    assert job["backoffLimit"] == 0 and policy["maxRestarts"] == 5
    assert (rule["action"], rule["onJobFailureReasons"]) == ("FailJobSet", ["PodFailurePolicy"])
    described = models.JobsetV1alpha2FailurePolicyRule.model_fields["action"].description
    assert rule["action"] in described


def test_a_pod_gets_what_it_is_asked_for_and_is_told_what_it_cannot_see():
    arguments = ("--gpus", "2", "--cpus", "16", "--memory", "64Gi", "--secret", "keys", "launch.grace=2 minutes")
    job, container = job_of(printed(*IMAGE, *CLAIM, *arguments))
    amounts = {"cpu": "16", "memory": "64Gi", "nvidia.com/gpu": "2"}
    assert container["resources"] == {"requests": amounts, "limits": amounts}
    assert {"launch.processes=2", "launch.device=cuda"} <= set(container["command"])
    assert container["env"] == [{"name": "OMP_NUM_THREADS", "value": "8"}]
    assert container["envFrom"] == [{"secretRef": {"name": "keys"}}]
    pod = job["template"]["spec"]
    assert pod["terminationGracePeriodSeconds"] == 150
    assert {"name": "runs", "persistentVolumeClaim": {"claimName": "runs"}} in pod["volumes"]
    assert {"name": "runs", "mountPath": "/runs"} in container["volumeMounts"]


@pytest.mark.parametrize(
    ("arguments", "reason"),
    [
        (["launch.hosts=2"], "gone with the pod"),
        ([*CLAIM, "run.dir=/tmp/x"], "run.dir=/tmp/x: what is saved there is gone"),
        ([*CLAIM, "checkpoint.url=/scratch"], "checkpoint.url=/scratch: what is saved there is gone"),
        ([*CLAIM, "launch.endpoint=a:1"], "leave it out"),
        ([*CLAIM, "launch.hosts=1:2"], "a fixed number of pods"),
        ([*CLAIM, "data.contxt=64"], "did you mean data.context?"),
        ([*CLAIM, "--gpus", "2", "launch.processes=4"], "4 processes for 2 GPUs"),
        ([*CLAIM, "--name", "Big"], "expected small letters"),
        ([*CLAIM, "--memory", "64 GB"], "such as 64Gi"),
        (["--claim", "runs"], "expected CLAIM:PATH"),
    ],
)
def test_what_cannot_work_is_refused(arguments, reason):
    done = gradwire("manifest", *IMAGE, *arguments)
    assert done.returncode == 2 and reason in done.stderr and done.stdout == ""
