"""How many workers a host starts, and where a rank computes."""

import pytest
import torch

from gradwire.trainer.launch import context, local
from gradwire.trainer.launch.environment import Controller
from gradwire.trainer.launch.errors import PlacementError
from gradwire.trainer.launch.hosts import Hosts

PLACE = {"processes": 3, "hosts": 1, "endpoint": None, "device": "cpu"}
LAUNCH = PLACE | {"restarts": 2, "grace": "2 minutes", "wait": "1 minute"}


@pytest.mark.parametrize(("cores", "processes"), [(1, 1), (2, 2), (64, 2)])
def test_auto_on_cpu_is_two_processes_where_there_are_two_cores(monkeypatch, cores, processes):
    monkeypatch.setattr(local, "cores", lambda: cores)
    assert local.count_processes("auto", "cpu") == processes


def test_auto_is_one_process_for_each_gpu(monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 4)
    assert local.count_processes("auto", "auto") == 4
    assert local.count_processes("auto", "cpu") == min(2, local.cores())
    assert context.choose_device("auto", 3) == torch.device("cuda", 3)


def test_a_rank_without_a_gpu_is_refused_where_gpus_are_asked_for(monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    assert context.choose_device("auto", 0) == torch.device("cpu")
    with pytest.raises(PlacementError, match=r"launch\.device=cuda"):
        context.choose_device("cuda", 0)


def test_the_plan_follows_the_configuration():
    assert local.plan(LAUNCH, Controller()) == local.HostPlan(3, Hosts(1, 1), None, None, 2, 120.0, 60.0)


def test_slurms_hosts_and_endpoint_count_where_the_configuration_names_none():
    plan = local.plan(LAUNCH, Controller(hosts=2, host=1, endpoint="n1:20000"))
    assert (plan.hosts, plan.host, plan.endpoint) == (Hosts(2, 2), 1, "n1:20000")


def test_hosts_need_an_endpoint():
    with pytest.raises(PlacementError, match=r"launch\.endpoint=host:port"):
        local.plan(LAUNCH | {"hosts": 2}, Controller())
