"""Catalogs of three formats, read in bulk, and what is said of those that are broken."""

from __future__ import annotations

import gzip

import numpy as np
import pytest

from fairmile.base.errors import Integrity, NotFound, UsageError
from fairmile.benchmarks.suite.earthquake import events as module
from fairmile.benchmarks.suite.earthquake.events import Events, read_events, write_events

PLAIN = """time_utc,lat,lon,depth_km,mag,quality,evid
1952-07-21T11:52:14.00,35.0,-119.0,6.0,7.5,A,1
1976-09-04T02:42:60.99,33.9025,-117.645,-0.5,-0.3,C,2
2019-07-06T03:19:53.04,35.7695,-117.59933,8.0,7.1,A,3
"""
COMCAT = """time,latitude,longitude,depth,mag,magType,nst,gap,dmin,rms,net,id,updated,place,type
2019-07-06T03:19:53.040Z,35.7695,-117.5993333,8,7.1,mw,75,25,,0.13,ci,ci1,2023Z,"18km W, CA",earthquake
2019-07-04T17:33:49.000Z,35.7053333,-117.5038333,1.05e1,6.4,mw,31,22,,0.15,ci,ci2,2023Z,"11km SW, CA","earthquake"
2019-07-05T00:00:00.000Z,35.1,-117.1,,,ml,3,1,,0.1,ci,ci3,2023Z,"x, CA",earthquake
2019-07-05T01:00:00.000Z,35.1,-117.1,0,1.2,ml,3,1,,0.1,ci,ci4,2023Z,"x, CA",quarry blast
"""
SCSN = """#YYY/MM/DD HH:mm:SS.ss ET GT MAG  M    LAT     LON     DEPTH Q  EVID NPH NGRM

2010/04/04 22:40:42.36 eq  l 7.20 w   32.2862 -115.2953  10.0 A 14607652   22  130
2010/04/05 00:00:00.00 qb  l 1.50 l   35.0000 -118.0000   0.0 C 14607653    9   20
2010/04/06 12:00:00.50 eq  l 2.00 l   33.0000 -116.0000   5.5 A 14607654    9   20
"""
SCSN_OLD = """#YYY/MM/DD HH:mm:SS.ss ET MAG  M    LAT     LON     DEPTH Q  EVID      NPH NGRM
2005/10/14 09:06:35.82 le 0.80 h    36.017 -118.353   5.5 C 10147461    9   75
"""


def written(folder, text, name="catalog.csv"):
    path = folder / name
    path.write_text(text)
    return path


def seconds(text):
    return np.datetime64(text, "ms").astype(np.int64) / 1000


def test_a_csv_is_read_to_the_last_digit(tmp_path):
    found = read_events(written(tmp_path, PLAIN))
    assert found.lat.tolist() == [35.0, 33.9025, 35.7695]
    assert found.lon.tolist() == [-119.0, -117.645, -117.59933]
    assert found.depth_km.tolist() == [6.0, -0.5, 8.0]
    assert found.mag.tolist() == [7.5, -0.3, 7.1]
    assert found.time_s[0] == seconds("1952-07-21T11:52:14")
    assert found.notes == ()


def test_a_sixty_first_second_as_seismologists_write_it_belongs_to_the_next_minute(tmp_path):
    found = read_events(written(tmp_path, PLAIN))
    assert found.time_s[1] == pytest.approx(seconds("1976-09-04T02:43:00.990"), abs=1e-6)


def test_the_bulk_parser_agrees_with_float_for_any_decimal(tmp_path):
    rng = np.random.default_rng(0)
    lat, lon = rng.uniform(-90, 90, 500), rng.uniform(-180, 180, 500)
    mag = rng.uniform(-2, 8, 500)
    words = [
        (f"{a:.{i % 12}f}", repr(float(b)), f"{m:+.3e}") for i, (a, b, m) in enumerate(zip(lat, lon, mag, strict=True))
    ]
    rows = "".join(f"2000-01-01T00:00:{i % 60:02d}.{i:03d}Z,{a},{b},,{m}\n" for i, (a, b, m) in enumerate(words))
    found = read_events(written(tmp_path, "time,latitude,longitude,depth,mag\n" + rows))
    by_time = np.argsort([float(f"{i % 60}.{i:03d}") for i in range(500)], kind="stable")
    assert found.lat.tolist() == [float(words[i][0]) for i in by_time]
    assert found.lon.tolist() == [float(words[i][1]) for i in by_time]
    assert found.mag.tolist() == [float(words[i][2]) for i in by_time]


def test_blocks_of_any_size_give_the_same_events(tmp_path, monkeypatch):
    path = written(tmp_path, PLAIN.rstrip("\n"))
    whole = read_events(path)
    for size in (1, 7, 64, 100):
        monkeypatch.setattr(module, "BLOCK_BYTES", size)
        found = read_events(path)
        assert found.time_s.tolist() == whole.time_s.tolist()
        assert found.mag.tolist() == whole.mag.tolist()


def test_lines_of_windows_and_a_packed_file_are_read_alike(tmp_path):
    windows = tmp_path / "w.csv.gz"
    cut = "\r\n".join(",".join(line.split(",")[:5]) for line in PLAIN.splitlines()) + "\r\n"
    windows.write_bytes(gzip.compress(cut.encode()))
    assert read_events(windows).mag.tolist() == [7.5, -0.3, 7.1]


def test_comcat_is_put_in_order_and_what_is_missing_is_not_zero(tmp_path):
    found = read_events(written(tmp_path, COMCAT))
    assert found.lat.tolist() == [35.7053333, 35.1, 35.7695]
    assert np.isnan(found.mag[1])
    assert np.isnan(found.depth_km[1])
    assert found.depth_km[0] == 10.5
    assert "1 events have no usable magnitude or depth" in found.notes[0]
    assert "1 events are not earthquakes" in found.notes[1]


def test_an_impossible_magnitude_is_missing(tmp_path):
    text = PLAIN.replace(",7.5,", ",-9.99,").replace(",7.1,", ",nan,")
    assert np.isnan(read_events(written(tmp_path, text)).mag).tolist() == [True, False, True]


def test_a_folder_of_yearly_scsn_files_is_one_catalog(tmp_path):
    written(tmp_path, SCSN, "2010.catalog")
    written(tmp_path, SCSN_OLD, "2005.catalog")
    written(tmp_path, "not a catalog", "README.md")
    found = read_events(tmp_path)
    assert found.mag.tolist() == [0.8, 7.2, 2.0]
    assert found.lon.tolist() == [-118.353, -115.2953, -116.0]
    assert found.time_s[1] == seconds("2010-04-04T22:40:42.360")
    assert found.depth_km.tolist() == [5.5, 10.0, 5.5]


@pytest.mark.parametrize(
    ("old", "new", "sentence"),
    [
        ("2019-07-06T03", "2019-02-30T03", "catalog.csv:4: the row has no time"),
        ("2019-07-06T03:19", "2019-07-06T25:19", "catalog.csv:4: the row has no time"),
        ("35.7695", "135.7695", "catalog.csv:4: the row has no lat between -90 and 90"),
        (",7.1,", ",seven,", "catalog.csv:4: the row has a mag that is not a number"),
        (",-117.59933,8.0,7.1,A,3", ",-117.59933", "catalog.csv:4: the row has fewer than 5 fields"),
    ],
)
def test_a_broken_row_is_refused_with_its_line(tmp_path, old, new, sentence):
    path = written(tmp_path, PLAIN.replace(old, new))
    with pytest.raises(UsageError) as caught:
        read_events(path)
    assert sentence in str(caught.value)
    assert "broken=skip" in caught.value.hint
    found = read_events(path, broken="skip")
    assert found.mag.tolist() == [7.5, -0.3]
    assert found.notes[0].startswith("1 broken rows were skipped; the first: ")


def test_the_number_of_broken_rows_is_told(tmp_path):
    with pytest.raises(UsageError, match="3 such rows in this file"):
        read_events(written(tmp_path, PLAIN + "a,b,c,d,e\n\n,,,,\nx\n"))


def test_wrong_columns_are_named_with_what_was_expected(tmp_path):
    with pytest.raises(UsageError, match="no column for lat, mag; found time, depth, lon, size") as caught:
        read_events(written(tmp_path, "time,depth,lon,size\n1,2,3,4\n"))
    assert "time_utc,lat,lon,depth_km,mag" in caught.value.hint


def test_what_is_no_catalog_is_told(tmp_path):
    with pytest.raises(UsageError, match="neither CSV with a header nor SCSN text"):
        read_events(written(tmp_path, "hello world\n"))
    with pytest.raises(NotFound, match="no catalog in that folder"):
        read_events((tmp_path / "empty").mkdir() or tmp_path / "empty")
    with pytest.raises(NotFound, match="no catalog at"):
        read_events(tmp_path / "nowhere")
    with pytest.raises(UsageError, match="it has no events"):
        read_events(written(tmp_path, PLAIN.splitlines()[0] + "\n"))
    damaged = tmp_path / "damaged.csv.gz"
    damaged.write_bytes(gzip.compress(PLAIN.encode())[:-20])
    with pytest.raises(Integrity, match="is damaged"):
        read_events(damaged)


def test_events_come_back_as_they_were_written(tmp_path):
    made = Events(
        *(np.array(each) for each in ([0.25, 86400.5], [33.1, 34.2], [-118.5, -117.25], [6.0, np.nan], [2.5, np.nan]))
    )
    write_events(tmp_path / "made.csv.gz", made)
    found = read_events(tmp_path / "made.csv.gz")
    for name in ("time_s", "lat", "lon", "depth_km", "mag"):
        np.testing.assert_array_equal(getattr(found, name), getattr(made, name))


def test_a_silence_is_a_gap_when_it_is_long_for_the_catalog():
    steady = np.concatenate((np.arange(1000), np.arange(1031, 2000)))
    catalog = Events(steady * 86400.0, *(np.zeros(len(steady)) for _ in range(4)))
    assert catalog.gaps(0, 2000) == [(1000, 1030)]
    assert Events(steady[::7] * 86400.0, *(np.zeros(5) for _ in range(4))).gaps(0, 2000) == []


def test_the_edges_of_a_gap_are_its_first_and_last_day():
    days = np.array([0, 10, 40, 71, 100])
    quiet = Events(days * 86400.0, *(np.zeros(5) for _ in range(4)))
    assert quiet.gaps(0, 140, longest_days=30) == [(101, 139)]
    assert quiet.gaps(0, 131, longest_days=30) == []
    assert quiet.gaps(0, 140, longest_days=29) == [(41, 70), (101, 139)]
    assert quiet.gaps(-50, 60, longest_days=30) == [(0, 49)]
