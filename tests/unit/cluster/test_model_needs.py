"""Does a model start on a machine with less memory than its settings would like?"""

import logging

from mantle.cluster.config_model import Config
from mantle.cluster.model_needs import ModelNeeds
from mantle.core.ids import ModelId
from mantle.engine.port import EngineSettings
from mantle.pool.port import CatalogueEntry
from mantle.testing.catalogue import ListCatalogue

M = ModelId("m")
MIB = 1 << 20


def needs(budget_mib, *, kv_bytes_per_token=1024, slots=16):
    entry = CatalogueEntry(
        M, "x", "", "d", 100 * MIB, 8192, 0, "m", kv_bytes_per_token=kv_bytes_per_token
    )  # 8 MiB of KV a slot
    config = Config(engine=EngineSettings(slots=slots))
    return ModelNeeds(config, ListCatalogue(entry), budget_mib * MIB)


def test_all_slots_where_memory_allows():
    assert needs(300).engine(M).slots == 16
    assert needs(300).need_bytes(M) == 228 * MIB


def test_slots_are_cut_to_the_budget_and_the_log_says_so_once(caplog):
    small = needs(140)
    with caplog.at_level(logging.WARNING):
        assert small.engine(M).slots == 5
        assert small.load_spec(M).settings.slots == 5
    assert small.need_bytes(M) <= 140 * MIB
    assert caplog.text.count("5 slots instead of 16") == 1


def test_weights_beyond_the_budget_are_left_for_placement_to_refuse():
    assert needs(50).engine(M).slots == 1
    assert needs(50).need_bytes(M) > 50 * MIB


def test_unknown_kv_size_cuts_nothing():
    assert needs(50, kv_bytes_per_token=0).engine(M).slots == 16
