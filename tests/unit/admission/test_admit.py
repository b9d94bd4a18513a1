"""May this ask enter, and with which lane, window and seeds?"""

import pytest

from mantle.admission.admit import Admission
from mantle.admission.directory import Directory, TenantKeys, hash_api_key, new_api_key
from mantle.admission.lane_choice import choose_lane
from mantle.admission.port import Ask
from mantle.core.errors import (
    InvalidRequest,
    PermissionDenied,
    PromptTooLong,
    QueueFull,
    QuotaExceeded,
    Unauthenticated,
    UnknownModel,
)
from mantle.core.ids import ModelId, TenantId
from mantle.core.lane import Lane
from mantle.core.sampling import SamplingParams
from mantle.core.tenant import Quota, Tenant
from mantle.pool.port import CatalogueEntry, ModelState
from mantle.testing.catalogue import ListCatalogue
from mantle.testing.sim_clock import SimClock


class TakingScheduler:
    def __init__(self):
        self.taken = []

    def submit(self, requests):
        self.taken += requests
        return []

    def queued_count(self, request_id):
        return 0


class FixedPool:
    def window_tokens(self, model_id):
        return 100

    def residency(self, model_id):
        raise AssertionError("admission does not ask")


def entry(name, **fields):
    return CatalogueEntry(ModelId(name), "scripted", "", "d", 1, 100, 0, name, **fields)


KEY = new_api_key()
TENANT = Tenant(TenantId("acme"), models=frozenset({ModelId("m"), ModelId("old")}))


@pytest.fixture
def scheduler():
    return TakingScheduler()


@pytest.fixture
def admission(scheduler):
    return Admission(
        directory=Directory([TenantKeys(TENANT, (hash_api_key(KEY),))]),
        catalogue=ListCatalogue(
            entry("m", aliases=("nick",)), entry("secret"), entry("old", state=ModelState.ARCHIVED)
        ),
        pool=FixedPool(),
        scheduler=scheduler,
        clock=SimClock(now_ms=7.0),
    )


def ask(model="m", prompt=10, **fields):
    values = {"sampling": SamplingParams(seed=5), "max_output_tokens": None, **fields}
    return Ask(ModelId(model), tuple(range(prompt)), **values)


def enter(admission, *args, **fields):
    return admission.enter(admission.authenticate(KEY), ask(*args, **fields))


@pytest.mark.parametrize("key", [None, "", "mk-wrong", "mk-" + "x" * 32, "\ud800"])
def test_unknown_key_is_refused(admission, key):
    with pytest.raises(Unauthenticated):
        admission.authenticate(key)


def test_known_key_speaks_for_its_tenant(admission):
    assert admission.authenticate(KEY).tenant is TENANT


def test_keys_are_random_and_their_hash_does_not_hold_them():
    assert new_api_key() != new_api_key()
    assert KEY not in hash_api_key(KEY)


def test_alias_means_the_model_itself(admission, scheduler):
    enter(admission, "nick")
    assert scheduler.taken[0].model_id == "m"


@pytest.mark.parametrize("model", ["nobody", "old", ""])
def test_unknown_or_archived_model_is_refused(admission, model):
    with pytest.raises(UnknownModel):
        enter(admission, model)


def test_model_of_others_is_refused(admission):
    with pytest.raises(PermissionDenied):
        enter(admission, "secret")


def test_output_is_clamped_to_what_the_window_leaves(admission, scheduler):
    enter(admission, max_output_tokens=32_000)
    enter(admission, max_output_tokens=None)
    enter(admission, max_output_tokens=3)
    assert [r.max_output_tokens for r in scheduler.taken] == [90, 90, 3]


def test_prompt_beyond_the_window_is_refused_with_both_numbers(admission, scheduler):
    enter(admission, prompt=99)
    with pytest.raises(PromptTooLong, match="100 tokens > 99 maximum") as refusal:
        enter(admission, prompt=100, prompt_param="prompt")
    assert refusal.value.param == "prompt"
    assert len(scheduler.taken) == 1


def test_branches_share_the_prompt_and_differ_in_seed(admission, scheduler):
    enter(admission, n=3)
    seeds = [r.sampling.seed for r in scheduler.taken]
    assert seeds[0] == 5
    assert len(set(seeds)) == 3
    assert [r.branch_index for r in scheduler.taken] == [0, 1, 2]
    scheduler.taken.clear()
    enter(admission, n=3)
    assert [r.sampling.seed for r in scheduler.taken] == seeds


@pytest.mark.parametrize(
    ("tier", "lane"),
    [
        (None, Lane.STANDARD),
        ("auto", Lane.STANDARD),
        ("default", Lane.STANDARD),
        ("standard_only", Lane.STANDARD),
        ("priority", Lane.PRIORITY),
        ("flex", Lane.FLEX),
        ("reserved", Lane.STANDARD),
    ],
)
def test_tier_gives_the_lane(tier, lane):
    assert choose_lane(tier, tenant=Tenant(TenantId("t"))) is lane


def test_lane_that_was_not_bought_is_refused_and_unnamed_falls_to_what_was():
    flex_only = Tenant(TenantId("t"), lanes=frozenset({Lane.FLEX}))
    with pytest.raises(PermissionDenied) as refusal:
        choose_lane("priority", tenant=flex_only)
    assert refusal.value.code == "service_tier_not_allowed"
    assert choose_lane(None, tenant=flex_only) is Lane.FLEX


def test_unknown_tier_is_named():
    with pytest.raises(InvalidRequest) as refusal:
        choose_lane("gold", tenant=Tenant(TenantId("t")))
    assert refusal.value.param == "service_tier"


LIMITED_KEY = new_api_key()


@pytest.fixture
def limited(scheduler):
    tenant = Tenant(TenantId("small"), quotas=(Quota(ModelId("m"), 50, 30, 2),))
    admission = Admission(
        directory=Directory([TenantKeys(tenant, (hash_api_key(LIMITED_KEY),))]),
        catalogue=ListCatalogue(entry("m")),
        pool=FixedPool(),
        scheduler=scheduler,
        clock=SimClock(),
    )
    return admission, admission.authenticate(LIMITED_KEY)


def test_output_is_cut_to_what_the_quota_leaves(limited, scheduler):
    admission, principal = limited
    scheduler.submit = lambda requests: (
        scheduler.taken.extend(requests) or [WaitingGeneration(request) for request in requests]
    )
    admission.enter(principal, ask(prompt=10))
    assert scheduler.taken[0].max_output_tokens == 30
    assert admission.limits(principal, ModelId("m")).output_tokens.remaining == 0
    with pytest.raises(QuotaExceeded):
        admission.enter(principal, ask(prompt=10))


def test_ask_that_the_scheduler_refuses_holds_nothing(limited, scheduler):
    admission, principal = limited
    scheduler.submit = refuse
    with pytest.raises(QueueFull):
        admission.enter(principal, ask(prompt=10, n=2))
    limits = admission.limits(principal, ModelId("m"))
    assert limits.requests.remaining == 2
    assert limits.input_tokens.remaining == 50
    assert limits.output_tokens.remaining == 30


def refuse(requests):
    raise QueueFull("full", retry_after_ms=1.0)


class WaitingGeneration:
    def __init__(self, request):
        self.request = request
        self.ended = None

    def __aiter__(self):
        return self
