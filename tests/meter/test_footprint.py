"""Kilowatt-hours, money and CO₂."""

from __future__ import annotations

import math
from pathlib import Path

import pytest
from cases import for_each

from fairmile.base.errors import InvalidDocument, NotFound, UsageError
from fairmile.meter.footprint import Supply, footprint, pue_of, regions

TABLE = """\
sources:
  grid: the operator of the grid, https://example.org
regions:
  XX:
    name: Exland
    carbon: {g_per_kwh: 500, year: 2024, source: grid}
    price: {per_kwh: 0.25, currency: EUR, year: 2023, source: our bill, unverified: true}
"""


@pytest.fixture
def table(tmp_path: Path) -> Path:
    file = tmp_path / "table.yaml"
    file.write_text(TABLE)
    return file


def test_energy_becomes_kilowatt_hours_money_and_carbon(table: Path) -> None:
    found = footprint(7.2e6, "XX", file=table)
    assert found.kwh == pytest.approx(2.0)
    assert found.co2e_g == pytest.approx(1000.0)
    assert (found.cost, found.currency) == (pytest.approx(0.5), "EUR")


def test_the_result_names_region_year_and_source(table: Path) -> None:
    found = footprint(1.0, "XX", file=table)
    assert found.region == "Exland"
    assert found.carbon is not None and found.price is not None
    assert (found.carbon.year, found.carbon.source) == (2024, "the operator of the grid, https://example.org")
    assert (found.price.year, found.price.source, found.price.unverified) == (2023, "our bill", True)
    assert found.notes == ("the price of Exland is unverified",)


def test_the_building_counts_where_its_share_is_given(table: Path) -> None:
    assert footprint(3.6e6, "XX", file=table, pue=1.5).kwh == pytest.approx(1.5)


@for_each("name", ["DE", "de", "Germany", "germany"])
def test_a_region_is_found_by_code_and_name(name: str) -> None:
    assert footprint(3.6e6, name).co2e_g == pytest.approx(381)


def test_what_the_table_does_not_know_is_said_and_not_invented() -> None:
    found = footprint(3.6e6, "Bolivia")
    assert found.cost is None and found.currency is None
    assert "no price of Bolivia is known: give one in your own table (footprint.table or --table)" in found.notes


def test_an_unknown_region_is_an_error_with_the_nearest(table: Path) -> None:
    with pytest.raises(NotFound, match="no region 'Germny' in the table; did you mean 'Germany'"):
        footprint(1.0, "Germny")


@for_each("joules", [-1.0, math.nan, math.inf])
def test_an_amount_that_is_none_is_refused(joules: float) -> None:
    with pytest.raises(UsageError):
        footprint(joules, "DE")


@for_each("pue", [0.9, math.nan, math.inf])
def test_a_building_that_makes_energy_is_refused(pue: float) -> None:
    with pytest.raises(UsageError, match="PUE"):
        footprint(1.0, "DE", pue=pue)


@pytest.mark.parametrize(
    ("old", "new", "said"),
    [
        ("year: 2024, ", "", r"table\.yaml:6 regions\.XX\.carbon: the year and the source are missing"),
        (", source: grid", "", "the year and the source are missing"),
        ("500", "many", "must be a number"),
        ("500", "-5", "must be a number"),
        (" currency: EUR,", "", "the currency is missing"),
        ("regions:", "places:", "expected a field 'regions'"),
    ],
)
def test_a_table_that_breaks_its_rules_is_told_where(table: Path, old: str, new: str, said: str) -> None:
    table.write_text(TABLE.replace(old, new, 1))
    with pytest.raises(InvalidDocument, match=said):
        regions(table)


TARIFF = """regions:
  LAB:
    name: Lab
    price: {per_kwh: 0.3, currency: EUR, year: 2026, source: contract, hours: {22-6: 0.1, 12-13: 0.5}, zone: UTC}
"""


def test_a_price_by_hour_is_the_mean_over_the_period(tmp_path: Path) -> None:
    file = tmp_path / "tariff.yaml"
    file.write_text(TARIFF)
    day = 1_800_000_000 // 86400 * 86400.0

    def price(hour: float, hours: float) -> float:
        known = footprint(3.6e6, "LAB", file=file, period=(day + 3600 * hour, 3600 * hours))
        assert known.cost == (known.price.value if known.price else None)
        return known.cost or 0.0

    assert price(23, 2) == pytest.approx(0.1)
    assert price(5, 2) == pytest.approx(0.2)
    assert price(12.25, 0.5) == pytest.approx(0.5)
    assert price(7, 24) == price(3, 48) == pytest.approx((8 * 0.1 + 15 * 0.3 + 0.5) / 24)
    assert footprint(3.6e6, "LAB", file=file).cost == pytest.approx(0.3)
    assert "depends on the hour" in footprint(3.6e6, "LAB", file=file).notes[-1]


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("22-6: 0.1", "night: 0.1", "expected hours with their value"),
        ("zone: UTC", "zone: Mars/Olympus", "not a time zone"),
    ],
)
def test_a_tariff_that_cannot_be_read_is_told_where(tmp_path: Path, old: str, new: str, message: str) -> None:
    file = tmp_path / "tariff.yaml"
    file.write_text(TARIFF.replace(old, new))
    with pytest.raises(InvalidDocument, match=rf"tariff\.yaml:4 regions\.LAB\.price.*{message}"):
        footprint(1.0, "LAB", file=file)


def test_a_table_that_is_not_there_is_told(tmp_path: Path) -> None:
    with pytest.raises(NotFound, match=r"no such file: .*missing\.yaml"):
        regions(tmp_path / "missing.yaml")


def test_every_figure_we_ship_has_a_year_and_a_source_and_is_plausible() -> None:
    table = regions()
    assert len(table) >= 50
    assert sum(region.price is not None for region in table.values()) >= 50
    for region in table.values():
        figures = [figure for figure in (region.carbon, region.price) if figure is not None]
        assert figures, region
        for figure in figures:
            assert 2020 <= figure.year <= 2030 and "https://" in figure.source
        assert region.carbon is None or 10 <= region.carbon.value <= 1000
        assert region.price is None or 0.01 <= region.price.value <= 1


def test_a_person_is_told_each_number_with_year_and_source(table: Path) -> None:
    told = footprint(7.2e6, "XX", file=table, pue=1.5).sentences()
    assert told == [
        ("energy", "3 kWh in Exland, PUE 1.5"),
        ("CO₂e", "1500 g (500 g/kWh, 2024, the operator of the grid, https://example.org)"),
        ("cost", "0.75 EUR (0.25 a kWh, 2023, our bill)"),
        ("note", "the price of Exland is unverified"),
    ]


def test_a_supply_reckons_only_where_region_and_energy_are_known(table: Path) -> None:
    assert Supply().footprint(1.0) is None
    assert Supply("XX", table=table).footprint(None) is None
    assert Supply("XX", 2.0, table).footprint(3.6e6) == footprint(3.6e6, "XX", file=table, pue=2.0)
    for energy_j in (0.0, None):
        with pytest.raises(NotFound, match="no region 'YY'"):
            Supply("YY", table=table).footprint(energy_j)


@for_each("value", [0.99, "0", "nan", "inf", "much", None])
def test_an_impossible_pue_is_refused_wherever_it_comes_from(value: object) -> None:
    with pytest.raises(UsageError, match="PUE"):
        pue_of(value)
    assert pue_of("1.25") == 1.25
