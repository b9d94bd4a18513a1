"""Does the certificate see an unfair share at once, and forget a quiet past?"""

import pytest

from mantle.core.ids import TenantId
from mantle.scheduler.certificate import WINDOWS_KEPT, Certificate, jain_index

A, B = TenantId("a"), TenantId("b")


def both_wait(**parts):
    certificate = Certificate(window_ms=100.0, **parts)
    certificate.waits(A, 0.0)
    certificate.waits(B, 0.0)
    return certificate


def serve(certificate, tenant, cost, now_ms):
    certificate.charged(tenant, cost, now_ms)
    certificate.landed(tenant, cost, now_ms)


def test_open_window_counts_before_it_closes():
    certificate = both_wait()
    for at_ms in range(1, 6):
        serve(certificate, A, 10.0, float(at_ms))
    assert certificate.last == 0.0
    assert certificate.present(50.0) == pytest.approx(50 / 20)


def test_last_window_stays_in_sight_while_the_next_one_is_open():
    certificate = both_wait()
    serve(certificate, A, 10.0, 1.0)
    assert certificate.present(110.0) == pytest.approx(10 / 20)
    assert certificate.present(150.0) == pytest.approx(10 / 20)
    assert certificate.present(260.0) == 0.0  # a whole window without any service
    assert certificate.highest == pytest.approx(10 / 20)


def test_tenant_that_came_in_between_is_not_compared():
    certificate = Certificate(window_ms=100.0)
    certificate.waits(A, 0.0)
    certificate.waits(B, 50.0)
    serve(certificate, A, 10.0, 60.0)
    assert certificate.present(90.0) == 0.0
    assert certificate.closed_since(0.0) == []


def test_closed_windows_have_jain_index_and_are_bounded():
    certificate = both_wait()
    for window in range(WINDOWS_KEPT * 2):
        now_ms = window * 100.0 + 50.0
        serve(certificate, A, 10.0, now_ms)
        serve(certificate, B, 10.0 if window % 2 else 0.0, now_ms)
    closed = certificate.closed_since(0.0)
    assert len(closed) == WINDOWS_KEPT
    assert {window.jain_index for window in closed} == {0.5, 1.0}
    since_ms = closed[-3].end_ms
    assert certificate.closed_since(since_ms) == closed[-3:]


def test_jain_index_counts_those_that_got_nothing():
    assert jain_index([3.0, 3.0, 3.0], count=3) == pytest.approx(1.0)
    assert jain_index([5.0], count=4) == pytest.approx(0.25)
    assert jain_index([-1.0, 4.0], count=2) == pytest.approx(0.5)
    assert jain_index([0.0], count=2) == 1.0
