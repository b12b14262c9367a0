"""Injected faults: the grammar, and that a scenario depends on nothing but its seed."""

from __future__ import annotations

import pickle

import numpy as np
import pytest

from grassia import Fault, Injector, InvalidInput
from grassia.faults import CALM, Plan, as_injector, corrupted
from grassia.messages import Reply, checksum


@pytest.mark.parametrize(
    ("text", "fault"),
    [
        ("slow:0:10x", Fault("slow", (0,), 10.0)),
        ("slow:0:10", Fault("slow", (0,), 10.0)),
        ("slow:3:1.5x@25%", Fault("slow", (3,), 1.5, None, 0.25)),
        ("delay:*:50ms", Fault("delay", None, 0.05)),
        ("delay:*:.5", Fault("delay", None, 0.5)),
        ("delay:1:2e-3s", Fault("delay", (1,), 2e-3)),
        ("delay:1:2e+1", Fault("delay", (1,), 20.0)),
        ("delay:1:7us@0", Fault("delay", (1,), 7e-6, (0,))),
        ("crash:1,2@5", Fault("crash", (1, 2), 0.0, (5,))),
        ("crash:12@3,4,10", Fault("crash", (12,), 0.0, (3, 4, 10))),
        ("corrupt:*@0.5%", Fault("corrupt", None, 0.0, None, 0.005)),
        ("duplicate:0", Fault("duplicate", (0,))),
        ("  error:*@100%  ", Fault("error")),
    ],
)
def test_a_rule_is_read_as_it_is_written(text, fault):
    found = Fault.parse(text)
    assert (found.kind, found.components, found.at) == (fault.kind, fault.components, fault.at)
    assert found.value == pytest.approx(fault.value)
    assert found.probability == pytest.approx(fault.probability)


@pytest.mark.parametrize(
    ("text", "rule"),
    [
        ("", "KIND:COMPONENTS"),
        ("slow", "KIND:COMPONENTS"),
        ("slow:", "KIND:COMPONENTS"),
        ("slow:x:10x", "KIND:COMPONENTS"),
        ("slow:-1:10x", "KIND:COMPONENTS"),
        ("slow:0:-10x", "KIND:COMPONENTS"),
        ("delay:0:1.2.3s", "KIND:COMPONENTS"),
        ("delay:0:.s", "KIND:COMPONENTS"),
        ("crash:0@", "KIND:COMPONENTS"),
        ("crash:0@1.2.3%", "KIND:COMPONENTS"),
        ("crash:0@1.5", "KIND:COMPONENTS"),
        ("crash:1,@2", "KIND:COMPONENTS"),
        ("crash:*,1", "KIND:COMPONENTS"),
        ("crash:0@1 and more", "KIND:COMPONENTS"),
        ("explode:0", "must be one of"),
        ("explode:0:3", "must be one of"),
        ("slow:0:0.5x", "at least 1"),
        ("slow:0:1e999x", "finite"),
        ("slow:0", "needs a value"),
        ("delay:0", "needs a value"),
        ("slow:0:10ms", "is in x"),
        ("delay:0:10x", "is in s or ms or us"),
        ("crash:0:3", "takes no value"),
        ("corrupt:0@101%", r"\[0, 1\]"),
    ],
)
def test_a_rule_that_makes_no_sense_is_refused_with_the_rule_it_breaks(text, rule):
    with pytest.raises(InvalidInput, match=rule):
        Fault.parse(text)


@pytest.mark.parametrize(
    "make",
    [
        lambda: Fault("slow", (0,), float("nan")),
        lambda: Fault("delay", (0,), float("inf")),
        lambda: Fault("delay", (0,), -1.0),
        lambda: Fault("crash", probability=float("nan")),
        lambda: Fault("crash", probability=-0.1),
        lambda: Fault("crash", (-1,)),
        lambda: Fault("crash", (1.5,)),
        lambda: Fault("crash", (True,)),
        lambda: Fault("crash", at=("1",)),
        lambda: Injector((), seed=-1),
        lambda: Injector((), seed=0.5),
        lambda: as_injector(3),
        lambda: as_injector(["slow:0:2x", 7]),
        lambda: as_injector({"slow": 2}.items()),
    ],
)
def test_a_fault_made_by_hand_obeys_the_same_rules(make):
    with pytest.raises(InvalidInput):
        make()


def test_components_and_ordinals_may_be_one_number_or_any_iterable():
    assert Fault("crash", 3, at=[1, 2]) == Fault("crash", (3,), at=(1, 2))


def test_no_faults_is_calm():
    assert as_injector(None).plan(0, 0) is CALM
    assert as_injector("crash:1").plan(0, 0) is CALM


def test_rules_in_every_accepted_form_give_the_same_injector():
    rule = Fault.parse("crash:1@3")
    forms = ["crash:1@3", rule, ["crash:1@3"], (rule,), iter(["crash:1@3"]), Injector((rule,))]
    assert {as_injector(form) for form in forms} == {Injector((rule,))}


def test_factors_multiply_and_delays_add():
    injector = Injector.parse(["slow:*:2x", "slow:0:5x", "delay:0:1s", "delay:*:250ms"])
    assert injector.plan(0, 7) == Plan(factor=10.0, delay=1.25)
    assert injector.plan(1, 7) == Plan(factor=2.0, delay=0.25)


def test_a_crash_at_a_task_strikes_that_task_alone():
    # Ordinals go on counting when a worker is restarted, so the rule does not strike it again.
    injector = Injector.parse("crash:1@3")
    struck = {(i, m) for i in range(4) for m in range(50) if injector.plan(i, m).crash}
    assert struck == {(1, 3)}


def test_what_befalls_a_task_depends_on_seed_component_and_ordinal_only():
    rules = ["crash:*@30%", "corrupt:*@30%", "delay:*:1s@50%"]
    tasks = [(i, m) for i in range(10) for m in range(50)]
    forwards = {task: Injector.parse(rules, seed=5).plan(*task) for task in tasks}
    travelled = pickle.loads(pickle.dumps(Injector.parse(rules, seed=5)))
    backwards = {task: travelled.plan(*task) for task in reversed(tasks)}
    assert forwards == backwards
    other = {task: Injector.parse(rules, seed=6).plan(*task) for task in tasks}
    assert sum(forwards[task] != other[task] for task in tasks) > len(tasks) / 4


def test_rules_components_and_tasks_draw_independently():
    injector = Injector.parse(["crash:*@50%", "corrupt:*@50%"], seed=1)
    plans = [[injector.plan(i, m) for m in range(100)] for i in range(20)]
    crash = np.array([[plan.crash for plan in row] for row in plans], dtype=float)
    corrupt = np.array([[plan.corrupt for plan in row] for row in plans], dtype=float)

    def correlation(a, b):
        return abs(np.corrcoef(a.ravel(), b.ravel())[0, 1])

    # 2000 draws: a correlation of 0.1 would be 4.5 standard deviations.
    assert correlation(crash, corrupt) < 0.1
    assert correlation(crash[:-1], crash[1:]) < 0.1
    assert correlation(crash[:, :-1], crash[:, 1:]) < 0.1


@pytest.mark.parametrize("percent", [0, 1, 30, 100])
def test_a_rule_acts_as_often_as_its_probability_says(percent):
    injector = Injector.parse(f"error:*@{percent}%", seed=2)
    n = 4000
    acted = sum(injector.plan(i, m).error for i in range(40) for m in range(n // 40))
    p = percent / 100
    assert abs(acted - n * p) <= 4.0 * np.sqrt(n * p * (1 - p))


def test_a_rule_for_a_component_there_is_not_is_refused():
    Injector.parse(["crash:4", "slow:*:2x"]).check(5)
    with pytest.raises(InvalidInput, match="from 0 to 4; a 'crash' names 5"):
        Injector.parse("crash:2,5").check(5)


@pytest.mark.parametrize(
    "arrays",
    [
        {"x": np.arange(6.0).reshape(2, 3)},
        {"x": np.arange(6.0).reshape(2, 3).T},
        {"a": np.zeros((0, 3)), "b": np.zeros(1)},
        {"a": np.zeros((0, 3))},
        {},
    ],
    ids=["plain", "transposed", "first empty", "all empty", "none"],
)
def test_a_corrupted_reply_is_caught_by_its_checksum_and_the_original_is_untouched(arrays):
    before = {name: array.copy() for name, array in arrays.items()}
    reply = Reply(task=1, component=0, version=0, arrays=arrays, scalars={}, checksum=checksum(arrays))
    damaged = corrupted(reply)
    assert checksum(damaged.arrays) != damaged.checksum
    assert checksum(reply.arrays) == reply.checksum
    for name, array in before.items():
        np.testing.assert_array_equal(reply.arrays[name], array)
